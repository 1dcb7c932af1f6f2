#pragma once   // all of it that device code can use is in forge_prelude.h or built into NVRTC
