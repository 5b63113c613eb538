//! Compression of files' contents.
//!
//! | module | contents |
//! |---|---|
//! | `segment` | cutting a segment of a file into extents |
//! | `index` | the index of a compressed file |
//! | `records` | the index of one whose addresses need 48 bits |
//! | `workers` | the threads that compress |

pub mod index;
pub mod records;
pub mod segment;
pub mod workers;
