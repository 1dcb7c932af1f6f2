#pragma once   // the functions are built into NVRTC, the constants are in forge_prelude.h
