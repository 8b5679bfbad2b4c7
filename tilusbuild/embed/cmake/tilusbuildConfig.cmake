# Kernels of a tilus.toml in a CMake project: docs/cmake.md.
#
#     find_package(tilusbuild REQUIRED)
#     tilusbuild_add_kernels(kernels MANIFEST tilus.toml SCRIPTS saxpy TARGETS cpu)
#     target_link_libraries(app PRIVATE kernels)
if(CMAKE_VERSION VERSION_LESS 3.20)
  set(tilusbuild_FOUND FALSE)
  set(tilusbuild_NOT_FOUND_MESSAGE "tilusbuild needs CMake 3.20 or later")
  return()
endif()
cmake_policy(PUSH)
cmake_policy(VERSION 3.20) # depfiles, above all

# The command of the same installation (this file is in share/cmake, and in the Python package), or one on PATH.
find_program(
  TILUSBUILD_EXECUTABLE tilusbuild
  HINTS "${CMAKE_CURRENT_LIST_DIR}/../../../bin" "${CMAKE_CURRENT_LIST_DIR}/../../../../../../bin"
  DOC "The command tilusbuild")
if(NOT TILUSBUILD_EXECUTABLE)
  set(tilusbuild_FOUND FALSE)
  set(tilusbuild_NOT_FOUND_MESSAGE "the command tilusbuild is not on PATH: `pip install tilusbuild`, or set TILUSBUILD_EXECUTABLE")
  cmake_policy(POP)
  return()
endif()

# Adds the shared library NAME: its header NAME.h declares a function for each script, and the kernels are
# built, and installed, in the directory NAME.tilus beside it.
function(tilusbuild_add_kernels NAME)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "MANIFEST;DESTINATION" "SCRIPTS;TARGETS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "tilusbuild_add_kernels(${NAME}): unknown argument ${arg_UNPARSED_ARGUMENTS}; it takes MANIFEST, SCRIPTS, TARGETS, DESTINATION")
  endif()
  if(NOT arg_MANIFEST)
    set(arg_MANIFEST tilus.toml)
  endif()
  get_filename_component(manifest "${arg_MANIFEST}" ABSOLUTE)
  if(NOT EXISTS "${manifest}" OR NOT manifest MATCHES "/tilus\\.toml$")
    message(FATAL_ERROR "tilusbuild_add_kernels(${NAME}): MANIFEST ${arg_MANIFEST} is not a tilus.toml")
  endif()
  get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  if("C" IN_LIST languages)
    set(language C)
  elseif("CXX" IN_LIST languages)
    set(language CXX)
  else()
    message(FATAL_ERROR "tilusbuild_add_kernels(${NAME}): the project needs the language C or CXX")
  endif()
  set(dir "${CMAKE_CURRENT_BINARY_DIR}/${NAME}.kernels")
  set(beside "${CMAKE_CURRENT_BINARY_DIR}")
  if(CMAKE_LIBRARY_OUTPUT_DIRECTORY)
    set(beside "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}")
  endif()
  set(words)
  foreach(each IN LISTS arg_SCRIPTS)
    list(APPEND words --script "${each}")
  endforeach()
  foreach(each IN LISTS arg_TARGETS)
    list(APPEND words --target "${each}")
  endforeach()
  set(jobserver)
  if(CMAKE_VERSION VERSION_GREATER_EQUAL 3.28)
    set(jobserver JOB_SERVER_AWARE TRUE)
  endif()
  add_custom_command(
    OUTPUT "${dir}/${NAME}.stamp"
    BYPRODUCTS "${dir}/${NAME}.h" "${dir}/${NAME}.c"
    COMMAND "${TILUSBUILD_EXECUTABLE}" cmake build "${NAME}" --manifest "${manifest}"
            --sources "${dir}" --beside "${beside}" ${words}
    DEPENDS "${manifest}"
    DEPFILE "${dir}/${NAME}.d"
    COMMENT "Building the kernels ${NAME}"
    VERBATIM ${jobserver})
  add_library(${NAME} SHARED "${dir}/${NAME}.c" "${dir}/${NAME}.stamp")
  set_source_files_properties("${dir}/${NAME}.c" PROPERTIES GENERATED TRUE LANGUAGE ${language})
  set_target_properties(${NAME} PROPERTIES LINKER_LANGUAGE ${language} LIBRARY_OUTPUT_DIRECTORY "${beside}")
  target_include_directories(${NAME} INTERFACE "$<BUILD_INTERFACE:${dir}>")
  target_link_libraries(${NAME} PRIVATE ${CMAKE_DL_LIBS} pthread)
  include(GNUInstallDirs)
  if(NOT arg_DESTINATION)
    set(arg_DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  endif()
  install(DIRECTORY "${beside}/${NAME}.tilus" DESTINATION "${arg_DESTINATION}")
endfunction()
cmake_policy(POP)
