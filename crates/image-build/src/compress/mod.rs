//! Compression of files' contents.
//!
//! | module | contents |
//! |---|---|
//! | `segment` | segments of a file, compressed all at once or while they are read |
//! | `stored` | what a compressed segment consists of |
//! | `cutter` | cutting a segment into extents |
//! | `cuts` | extents that end at given positions |
//! | `extents` | the extents of a file, in a table |
//! | `index` | the index of a compressed file |
//! | `records` | the index of one whose addresses need 48 bits |
//! | `buffers` | memory of segments |
//! | `input` | how the bytes of a segment come to its thread |
//! | `workers` | the threads that compress |

pub mod buffers;
mod cuts;
pub mod cutter;
pub mod extents;
pub mod index;
pub mod input;
pub mod records;
pub mod segment;
pub mod stored;
pub mod workers;
