// A failed assertion stops the kernel; there is no output stream for a message. No include guard, as in C.
#undef assert
#ifdef NDEBUG
#define assert(test) ((void)0)
#else
#define assert(test) ((test) ? (void)0 : __trap())
#endif
