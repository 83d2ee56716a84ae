// What the module was built from.
#pragma once

namespace octavo {

// SHA-256 over names and contents of the sources but the tests, in hexadecimal. cmake/sources.cmake writes it.
const char* sources_digest();

}  // namespace octavo
