//! Parts of files that other files have too, or the same file before: the image has them once.
//!
//! They are found before anything is compressed. Contents are cut into chunks by what they contain (`gear`); a table of
//! hashes finds runs of chunks that were met before (`index`); such a match becomes a reference of one file to another
//! (`references`; `divided` and `cuts` are its tables). The other file begins a cluster where the reference begins. The file with the reference has extents that
//! name the same clusters, of which the last is used as far as the reference goes. So which contents are shared depends on
//! contents alone, and all of the compression is parallel.
//!
//! Cuts are hints: the cutter ignores one that its data does not allow (`compress/cuts.rs`), and then the reference is
//! compressed like any other part of its file.
//!
//! The end of a file that would be stored with its inode, or in the packed file, is never shared here.

mod cuts;
mod divided;
mod gear;
mod index;
mod references;

pub use divided::{Divided, Reference};
pub use gear::ChunkSizes;
pub use index::{ChunkIndex, FoundChunk, chunk_sizes};
pub use references::{Divisions, File};
