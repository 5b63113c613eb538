//! Compression of files' contents.
//!
//! | module | contents |
//! |---|---|
//! | `segment` | cutting a segment of a file into extents |
//! | `index` | the index of a compressed file |
//! | `workers` | the threads that compress |

pub mod index;
pub mod segment;
pub mod workers;
