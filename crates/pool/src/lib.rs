//! A dense allocator of compressed objects.
