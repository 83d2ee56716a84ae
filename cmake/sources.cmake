# Writes OUTPUT, a C++ file that tells which sources of ROOT/csrc the module is built from: `cmake -DROOT=… -DOUTPUT=… -P sources.cmake`.
# octavo/backends/cpu/native.py makes the same digest of what lies there when the module is imported.
file(GLOB_RECURSE files RELATIVE "${ROOT}/csrc" "${ROOT}/csrc/*.cpp" "${ROOT}/csrc/*.hpp" "${ROOT}/csrc/*.inl")
list(FILTER files EXCLUDE REGEX "^tests/")
list(SORT files)
set(lines "")
foreach(file IN LISTS files)
  file(SHA256 "${ROOT}/csrc/${file}" digest)
  string(APPEND lines "${file} ${digest}\n")
endforeach()
string(SHA256 digest "${lines}")
file(WRITE "${OUTPUT}" "#include \"binding/sources.hpp\"\n\nconst char* octavo::sources_digest() { return \"${digest}\"; }\n")
