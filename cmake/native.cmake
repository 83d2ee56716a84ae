# Targets of the native module: octavo_core (all of csrc/ but the binding), octavo_native (the Python module) and the C++ tests.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")
if(OCTAVO_SANITIZE)
  set(CMAKE_CXX_FLAGS_RELEASE "-O1")  # more takes minutes to compile, for kernels full of checks
endif()
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
find_package(Threads REQUIRED)

# Results must not depend on what the optimizer fuses, so products and sums stay as written and kernels say fma where they mean it.
set(flags -ffp-contract=off -fno-math-errno -fno-trapping-math -fvisibility=hidden -fvisibility-inlines-hidden)
# -Wno-psabi: vectors of 64 bytes never cross a function that other code calls.
set(warnings -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wnon-virtual-dtor -Wimplicit-fallthrough -Wno-psabi)
if(OCTAVO_WERROR)
  list(APPEND warnings -Werror)
endif()
if(OCTAVO_SANITIZE)
  set(sanitize -fsanitize=${OCTAVO_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  add_compile_options(${sanitize})
  add_link_options(${sanitize})
endif()

# A kernel's source is compiled once for each level of instructions: the end of a file's name says which, and a file without such an
# ending is compiled for the baseline. An inline function or a template that such a file shares with others is compiled with its flags too,
# and the linker keeps any one of the copies: on a machine without AVX-512 that may be one that crashes. So files of a level include
# nothing that defines functions with external linkage (no standard containers or algorithms), and keep their own in a namespace of
# the level or an anonymous one. `make native-test` checks the objects for symbols that break this.
set(level_avx2 -march=x86-64-v3)
set(level_avx512_vnni -march=x86-64-v4 -mavx512vnni)
set(level_avx512_bf16 -march=x86-64-v4 -mavx512vnni -mavx512bf16)
set(levels avx2 avx512_vnni avx512_bf16)

file(GLOB sources CONFIGURE_DEPENDS csrc/isa/*.cpp csrc/kernels/*.cpp csrc/pack/*.cpp csrc/probe/*.cpp csrc/program/*.cpp csrc/sampling/*.cpp csrc/team/*.cpp)
set(x86 OFF)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
  set(x86 ON)
endif()
foreach(level IN LISTS levels)
  set(of_level ${sources})
  list(FILTER of_level INCLUDE REGEX "_${level}\\.cpp$")
  if(x86)
    set_source_files_properties(${of_level} PROPERTIES COMPILE_OPTIONS "${level_${level}}")
  elseif(of_level)
    list(REMOVE_ITEM sources ${of_level})
  endif()
endforeach()

add_library(octavo_core STATIC ${sources})
target_include_directories(octavo_core PUBLIC csrc)
target_compile_options(octavo_core PRIVATE ${flags} ${warnings})
target_compile_definitions(octavo_core PUBLIC OCTAVO_X86=$<BOOL:${x86}>)
target_link_libraries(octavo_core PUBLIC Threads::Threads)

# nanobind is a Python package, so Python says where it is.
execute_process(COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE nanobind_ROOT RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "nanobind is not installed for ${Python_EXECUTABLE}: pip install nanobind")
endif()
find_package(nanobind CONFIG REQUIRED)

file(STRINGS src/octavo/_version.py version REGEX "^__version__")
string(REGEX REPLACE ".*\"(.*)\".*" "\\1" version "${version}")
file(GLOB_RECURSE all_sources CONFIGURE_DEPENDS csrc/*.cpp csrc/*.hpp csrc/*.inl)
list(FILTER all_sources EXCLUDE REGEX "/csrc/tests/")
set(digest "${CMAKE_CURRENT_BINARY_DIR}/sources_digest.cpp")
add_custom_command(OUTPUT "${digest}" DEPENDS ${all_sources} cmake/sources.cmake
  COMMAND "${CMAKE_COMMAND}" "-DROOT=${CMAKE_CURRENT_SOURCE_DIR}" "-DOUTPUT=${digest}" -P "${CMAKE_CURRENT_SOURCE_DIR}/cmake/sources.cmake"
  VERBATIM)
file(GLOB binding CONFIGURE_DEPENDS csrc/binding/*.cpp)
nanobind_add_module(octavo_native NB_STATIC STABLE_ABI NOMINSIZE NB_DOMAIN octavo ${binding} "${digest}")
set_target_properties(octavo_native PROPERTIES OUTPUT_NAME _native)
target_compile_options(octavo_native PRIVATE ${flags} ${warnings})
target_compile_definitions(octavo_native PRIVATE OCTAVO_VERSION="${version}")
target_link_libraries(octavo_native PRIVATE octavo_core)
# nanobind's own headers are not held to our warnings.
target_include_directories(octavo_native SYSTEM PRIVATE ${NB_DIR}/include)

if(OCTAVO_INPLACE)
  # A running process keeps the file it has opened: the new one takes its place in one step.
  set(home "${CMAKE_CURRENT_SOURCE_DIR}/src/octavo")
  add_custom_command(TARGET octavo_native POST_BUILD
    COMMAND "${CMAKE_COMMAND}" -E copy "$<TARGET_FILE:octavo_native>" "${home}/.$<TARGET_FILE_NAME:octavo_native>.new"
    COMMAND "${CMAKE_COMMAND}" -E rename "${home}/.$<TARGET_FILE_NAME:octavo_native>.new" "${home}/$<TARGET_FILE_NAME:octavo_native>"
    VERBATIM)
else()
  install(TARGETS octavo_native LIBRARY DESTINATION octavo)
endif()

if(OCTAVO_TESTS)
  # *_test.cpp are run by ctest; *_bench.cpp are only built.
  enable_testing()
  if(x86 AND NOT OCTAVO_SANITIZE)  # sanitizers add symbols of their own
    add_test(NAME levels COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_SOURCE_DIR}/scripts/check_levels.py" "${CMAKE_CURRENT_BINARY_DIR}")
  endif()
  file(GLOB programs CONFIGURE_DEPENDS csrc/tests/*_test.cpp csrc/tests/*_bench.cpp)
  foreach(program IN LISTS programs)
    get_filename_component(name "${program}" NAME_WE)
    add_executable(${name} "${program}")
    target_compile_options(${name} PRIVATE ${flags} ${warnings})
    target_link_libraries(${name} PRIVATE octavo_core)
    if(name MATCHES "_test$")
      add_test(NAME ${name} COMMAND ${name})
      set_tests_properties(${name} PROPERTIES TIMEOUT 300)
    endif()
  endforeach()
endif()
