/* The values of tvm-ffi and DLPack as they lie in memory, and the tables that describe a signature,
   which the generator writes after this part. No header of CUDA, DLPack or tvm-ffi is needed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define TL_EXPORT __attribute__((visibility("default")))
#define TL_HIDDEN __attribute__((visibility("hidden")))

/* DLPack 1.x (dlpack.h). */
enum { TL_ON_CPU = 1, TL_ON_CUDA = 2, TL_ON_CUDA_HOST = 3, TL_ON_CUDA_MANAGED = 13 };
typedef struct { uint8_t code, bits; uint16_t lanes; } tl_dtype;
typedef struct { int32_t kind, index; } tl_device;
typedef struct {
  void *data;
  tl_device device;
  int32_t rank;
  tl_dtype dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} tl_tensor;

/* tvm-ffi (tvm/ffi/c_api.h): TVMFFIAny, the type indices, and the head of an object. */
enum {
  TL_NONE = 0, TL_INT = 1, TL_BOOL = 2, TL_FLOAT = 3, TL_OPAQUE = 4, TL_DTYPE = 5, TL_DEVICE = 6,
  TL_TENSOR_POINTER = 7, TL_RAW_STR = 8, TL_SMALL_STR = 11, TL_SMALL_BYTES = 12, TL_STR = 65,
  TL_BYTES = 66, TL_FUNCTION = 68, TL_SHAPE = 69, TL_TENSOR = 70, TL_ARRAY = 71, TL_MAP = 72,
  TL_PYTHON = 74, TL_LIST = 75, TL_DICT = 76, TL_BIG_INT = 78
};
enum { TL_OBJECT_HEAD = 24 };
typedef struct {
  int32_t kind;
  uint32_t padding;
  union { int64_t integer; double real; void *pointer; } as;
} tl_any;

typedef union {
  void *pointer;
  int8_t i8; int16_t i16; int32_t i32; int64_t i64;
  uint8_t u8; uint16_t u16; uint32_t u32; uint64_t u64;
  _Bool boolean;
  float f32;
  double f64;
} tl_value;

enum { TL_CODE_INT = 0, TL_CODE_UINT = 1, TL_CODE_FLOAT = 2, TL_CODE_BFLOAT = 4, TL_CODE_BOOL = 6 };
enum { TL_SCALAR = -1 };

/* Names are places in tl_strings: pointers would each be written when the library is loaded, in a page
   of its own. */
typedef struct {
  uint32_t name, type;
  uint8_t code, bits;
  int8_t rank;        /* TL_SCALAR, or the number of dimensions */
  uint8_t passed;     /* 0: a dimension, which is read off the shapes */
  uint16_t first_dim; /* in tl_dims */
  uint32_t align;     /* bytes */
  int64_t low, high;  /* of an integer scalar, inclusive */
} tl_argument;

#ifdef TL_TENSOR_MAPS
typedef struct {
  uint32_t name;
  uint8_t tensor, type, bytes, nan, rank; /* CUtensorMapDataType, bytes of an element */
  uint16_t slot;                          /* of tilus_constants: where its numbers begin */
  int16_t sizes, strides;                 /* in tl_dims; strides are -1 for contiguous memory */
} tl_map_of;

#endif
#ifdef TL_PACKED
typedef struct {
  uint32_t name;
  uint16_t offset, bytes; /* in the structs that the launcher makes */
  int16_t from;           /* an argument; or -1, -2, …: a number that tl_geometry computes */
  int64_t low, high;      /* of such a number */
} tl_member_of;

#endif
#ifdef TL_CONSTANTS
typedef struct {
  uint32_t variable;        /* of the device code */
  uint16_t argument, bytes; /* bytes of an element, of a scalar or a struct */
} tl_constant_of;

#endif
enum { TL_DIM_ARGUMENT, TL_DIM_LITERAL, TL_DIM_EXPRESSION };
typedef struct { int32_t kind; uint32_t text; int64_t value; } tl_dim;
