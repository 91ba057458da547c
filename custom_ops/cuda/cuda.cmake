# libonnxfold_ops_cuda: the CPU's kernels and those for CUDA in one library. nvcc is run by
# compile.cmake rather than by CMake's own support, which has no way to read what ptxas reports.
if(ONNXFOLD_CUDA STREQUAL "AUTO")
  find_package(CUDAToolkit 12.0 QUIET)
elseif(ONNXFOLD_CUDA)
  find_package(CUDAToolkit 12.0 REQUIRED)
endif()
if(NOT ONNXFOLD_CUDA OR NOT CUDAToolkit_FOUND)
  return()
endif()
set(nvcc ${CUDAToolkit_NVCC_EXECUTABLE})

set(ONNXFOLD_CUDA_ARCHITECTURES 70 75 80 89 90 100 120 CACHE STRING "Compute capabilities x 10")
execute_process(COMMAND ${nvcc} --list-gpu-code OUTPUT_VARIABLE known COMMAND_ERROR_IS_FATAL ANY)
set(older "")
set(newer "")
foreach(architecture IN LISTS ONNXFOLD_CUDA_ARCHITECTURES)
  if(NOT known MATCHES "sm_${architecture}\n")
    message(STATUS "CUDA ${CUDAToolkit_VERSION} has no sm_${architecture}: left out")
  elseif(architecture LESS 80)
    list(APPEND older ${architecture})
  else()
    list(APPEND newer ${architecture})
  endif()
endforeach()
# Kernels begin before the one before them has ended, from compute capability 9.0 on.
option(ONNXFOLD_PDL "Launch CUDA kernels by programmatic dependent launch" OFF)
# The kernels use nothing newer than compute capability 8.0, so its PTX serves all later ones: it is
# compiled once, assembled for each, and kept for those that are not in the list. Programmatic
# dependent launch takes the PTX of 9.0.
set(codes compute_80)
set(codes_90 compute_90)
foreach(architecture IN LISTS newer)
  if(ONNXFOLD_PDL AND NOT architecture LESS 90)
    list(APPEND codes_90 sm_${architecture})
  else()
    list(APPEND codes sm_${architecture})
  endif()
endforeach()
list(JOIN codes "," codes)
list(JOIN codes_90 "," codes_90)
set(targets -gencode=arch=compute_80,code=[${codes}])
if(ONNXFOLD_PDL)
  list(APPEND targets -gencode=arch=compute_90,code=[${codes_90}] -DONNXFOLD_PDL)
endif()
foreach(architecture IN LISTS older)
  list(APPEND targets -gencode=arch=compute_${architecture},code=sm_${architecture})
endforeach()
list(JOIN older " " older)
list(JOIN newer " " newer)
message(STATUS "CUDA ${CUDAToolkit_VERSION}: kernels for sm ${older} ${newer}, PTX 80")

set(options -ccbin=${CMAKE_CXX_COMPILER} -std=c++17 -O3 -I${PROJECT_SOURCE_DIR}/include ${targets}
            -Xfatbin=-compress-all
            -Xcompiler=-Wall,-Wextra,-fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti)
if(ONNXFOLD_STRICT)
  list(APPEND options -Werror=all-warnings -Xcompiler=-Werror)
endif()
file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/onnxfold/*.h
     ${CMAKE_CURRENT_LIST_DIR}/*.h ${CMAKE_CURRENT_LIST_DIR}/*.cuh)
set(objects "")
foreach(type float half bfloat16)
  set(source ${CMAKE_CURRENT_LIST_DIR}/kernels_${type}.cu)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/kernels_${type}.o)
  set(report ${CMAKE_CURRENT_BINARY_DIR}/registers_${type}.txt)
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${CMAKE_COMMAND} -DNVCC=${nvcc} -DSOURCE=${source} -DOBJECT=${object} -DREPORT=${report}
            "-DOPTIONS=${options}" -DSTRICT=${ONNXFOLD_STRICT} -P ${CMAKE_CURRENT_LIST_DIR}/compile.cmake
    DEPENDS ${source} ${headers} ${CMAKE_CURRENT_LIST_DIR}/compile.cmake
    COMMENT "Compiling CUDA kernels: ${type}"
    VERBATIM)
  list(APPEND objects ${object})
endforeach()

# cudart is linked statically: the library loads on hosts without CUDA, and beside any runtime.
add_library(onnxfold_cuda OBJECT cuda/plan.cpp cuda/launch.cpp ${objects})
target_link_libraries(onnxfold_cuda PUBLIC onnxfold_compute)
target_include_directories(onnxfold_cuda SYSTEM PUBLIC ${CUDAToolkit_INCLUDE_DIRS})
target_compile_definitions(onnxfold_cuda PRIVATE
                           "ONNXFOLD_ARCHITECTURES=\"${older} ${newer} ptx 80\""
                           $<$<BOOL:${ONNXFOLD_PDL}>:ONNXFOLD_PDL>)
onnxfold_library(onnxfold_ops_cuda)
target_compile_definitions(onnxfold_ops_cuda PRIVATE ONNXFOLD_CUDA)
target_link_libraries(onnxfold_ops_cuda PRIVATE onnxfold_cuda ${objects} CUDA::cudart_static)
# Read by onnxfold/runtime/cuda.py from the file; nothing in the library refers to it.
target_link_options(onnxfold_ops_cuda PRIVATE -Wl,--undefined=onnxfold_cuda_build)

if(ONNXFOLD_DRIVER)
  add_library(onnxfold_cuda_driver MODULE cuda/driver.cpp)
  target_link_libraries(onnxfold_cuda_driver PRIVATE onnxfold_cuda onnxfold_compute ${objects}
                        CUDA::cudart_static)
  target_link_options(onnxfold_cuda_driver PRIVATE -Wl,-z,defs)
endif()
