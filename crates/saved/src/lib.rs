//! The format of saved disks: a stream of compressed pages as a store has them in memory, with an index and a digest.
//!
//! `docs/formats/saved-disk.md` describes the bytes. [`Writer`] writes a saved disk and never seeks, so the output may
//! be a pipe. [`Reader`] reads one in order, verifies each block, and needs memory for one block only, whatever the file
//! claims. [`Outline`] reads the ends of a file for its properties and totals, without the pages; [`Lookup`] finds single pages by the
//! index.
//!
//! ```
//! use pagefold_saved::{Header, PageForm, PlainOutput, Reader, Writer};
//!
//! let header = Header::new(1 << 20, [7; 16]);
//! let mut writer = Writer::new(PlainOutput::new(Vec::new()), &header)?;
//! writer.add(3, PageForm::SameFilled(0xff))?;
//! let (totals, output) = writer.finish()?;
//! assert_eq!(totals.pages, 1);
//!
//! let file = output.into_inner();
//! let mut reader = Reader::open(&file[..])?;
//! let block = reader.next_block()?.expect("one block");
//! assert_eq!(block.pages().next(), Some((3, PageForm::SameFilled(0xff))));
//! assert!(reader.next_block()?.is_none());
//! assert_eq!(reader.finish()?, totals);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The crate knows no store, codec or file: pages are bytes here, and codecs are names. `pagefold-server` copies pages
//! between a store and this format.
//!
//! | module | contents |
//! |---|---|
//! | `salvage` | a new saved disk of what verifies of a damaged one |
//! | `writer`, `lookup`, `outline` | writing, reading single pages by the index, and reading the ends |
//! | `reader` | reading in order |
//! | `index` | the runs of pages in the index, and their comparison with the blocks |
//! | `output` | where a writer puts its bytes, with their digest: in order, or by two more threads |
//! | `block`, `header`, `trailer` | the parts of the format |
//! | `page_set` | a set of pages, as ranges |
//! | `bytes`, `error` | fields, errors |
//!
//! Each module uses only those below it in this table.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod block;
mod bytes;
mod error;
mod header;
mod index;
mod lookup;
mod outline;
mod output;
mod page_set;
mod reader;
mod salvage;
mod trailer;
mod writer;

pub use block::{Block, PageForm};
pub use error::SavedError;
pub use header::{CHAIN_FILES_MAX, CodecRecord, HEAD_LEN, Head, Header, Parent};
pub use lookup::{BlockBytes, LEAVES_MAX, Leaf, Lookup, Place, ReadAt};
pub use outline::{Ends, Outline};
pub use output::{Output, PlainOutput, ThreadedOutput};
pub use reader::Reader;
pub use salvage::{SalvageError, Salvaged, salvage};
pub use trailer::{TRAILER_LEN, Totals};
pub use writer::Writer;
