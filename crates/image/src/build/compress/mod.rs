//! Compression of files' contents.
//!
//! | module | contents |
//! |---|---|
//! | `segment` | cutting a segment of a file into extents |
//! | `cuts` | extents that end at given positions |
//! | `index` | the index of a compressed file |
//! | `records` | the index of one whose addresses need 48 bits |
//! | `buffers` | memory of segments |
//! | `workers` | the threads that compress |

pub mod buffers;
mod cuts;
pub mod index;
pub mod records;
pub mod segment;
pub mod workers;
