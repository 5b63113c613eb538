//! Builds EROFS images: from a [`Tree`], whose contents are compressed by several threads.
//!
//! ```
//! use pagefold_image_build::{Metadata, Options, Target, Tree, build};
//! use pagefold_image::{Image, Options as ReadOptions};
//! use std::ops::ControlFlow;
//!
//! let mut tree = Tree::new(Metadata::default());
//! tree.add_bytes(b"etc/motd", *b"Welcome\n")?;
//! tree.add_bytes(b"usr/share/zeroes", vec![0; 1 << 20])?;
//!
//! let file = tempfile::NamedTempFile::new()?;
//! let options = Options::for_target(Target::new(6, 12));
//! let summary = build(&tree, &options, file.as_file(), &mut |_| ControlFlow::Continue(()))?;
//! assert!(summary.image_bytes < 64 << 10);
//!
//! let image = Image::open_file(file.path(), ReadOptions::default())?;
//! let mut motd = [0; 8];
//! image.find(b"/etc/motd")?.read_at(0, &mut motd)?;
//! assert_eq!(&motd, b"Welcome\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The bytes of an image depend on the tree and the [`Options`] alone: not on the number of threads, the CPU, the clock,
//! or the order in which a source delivered names.
//!
//! | module | contents |
//! |---|---|
//! | `tree`, `content` | what an image is built from |
//! | `source` | trees from directories, tar archives and images |
//! | `xattrs` | which extended attributes stay, and which are added |
//! | `owners`, `fs_config` | moving the numbers of users and groups; owners and modes by path |
//! | `base64` | values of attributes as text |
//! | `options`, `form`, `compression`, `rules`, `preset`, `target` | what the caller chooses |
//! | `running_kernel` | the options for the kernel that runs here |
//! | `memory` | the division of memory |
//! | `plan` | the order of inodes |
//! | `sort`, `versions` | the order of contents |
//! | `contents`, `compress` | reading and compressing files |
//! | `duplicates` | finding files with the same contents |
//! | `chunks` | finding equal parts of files |
//! | `devices` | blocks, and the devices of images without contents |
//! | `sparse`, `chunk_files`, `index_files` | files in chunks: those that consist mostly of holes, and all if that is asked for |
//! | `table` | records that may be more than memory holds |
//! | `writer`, `metadata`, `superblock`, `output` | the image |
//! | `progress` | progress and summary |
//! | `verify` | comparing an image with what went in |
//!
//! *One file:* `contents` reads it segment by segment -> `compress/workers.rs` passes each to a thread ->
//! `compress/segment.rs` cuts it into extents and compresses them -> `writer` appends the clusters in order, encodes
//! the index (`compress/index.rs`, or `records.rs` in images of 16 TiB and more), and places the inode
//! (`metadata/space.rs`).
//!
//! *One small file:* `contents/packing.rs` appends it to the packed file, which `contents/packed.rs` cuts into segments ->
//! the same threads compress them -> `writer` places an inode that names the position in the packed file.
//!
//! *A file of a layer that comes from a registry, uncompressed:* `source/tar/split.rs` finds its contents in the stream ->
//! `source/tar/placing.rs` appends them to the image -> the tree is read from `source/tar/parts.rs` -> `contents` finds them in
//! place, and `writer` places the inode.
//!
//! Equal files share their blocks, and equal parts of compressed files their clusters, unless the options say otherwise.
//! Tables that exceed the memory of the options go to a file without a name. The directories of an image that has
//! many inodes are compressed too (`writer/directories.rs`), and the inodes may be (`writer/metabox.rs`). An image without
//! contents has its sources as further devices (`index_files`).

// Printing panics when it cannot write. Only the binary prints, in one file.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod base64;
mod chunk_files;
mod chunks;
mod compress;
mod compression;
pub mod content;
mod content_hash;
mod contents;
mod devices;
mod duplicates;
mod error;
mod form;
mod fs_config;
mod index_files;
mod memory;
mod metadata;
mod options;
mod output;
mod owners;
mod plan;
mod preset;
mod progress;
mod rules;
mod running_kernel;
mod sort;
pub mod source;
mod sparse;
mod superblock;
mod table;
mod target;
pub mod tree;
mod verify;
mod versions;
mod writer;
mod xattrs;

use memory::Division;

pub use chunk_files::{CHUNK_BYTES_MAX, ChunkForm};
pub use compression::{Compression, Method};
pub use error::{BuildError, Result};
pub use form::{Form, InodeForm};
pub use fs_config::{FS_CONFIG_BYTES_MAX, FsConfig};
pub use options::{BLOCK_BYTES, CLUSTER_BYTES_MAX, Dedupe, Options};
pub use output::ImageFile;
pub use preset::Preset;
pub use progress::{OnProgress, Phase, Progress, Stored, Summary};
pub use rules::{Pattern, Rule, Rules};
pub use running_kernel::RunningKernel;
pub use sort::{LIST_BYTES_MAX, LIST_PATHS_MAX, Listed, Sort, SortList};
pub use table::Spill;
pub use target::{TARGETS, Target};
pub use tree::{Body, InodeId, Metadata, Tree};
pub use verify::{Digests, VerifyError, verify};
pub use xattrs::{CONTEXTS_BYTES_MAX, FileContexts, SetXattr, XattrChanges, XattrFilter, XattrPattern};

/// Writes the image of a tree to a file, which is empty or may be overwritten, and is cut to the image's length.
///
/// The file is not an image until this returns: the superblock is written last. The caller gives a file that has no
/// name yet, or a temporary one, and syncs it. `on_progress` is called in the caller's thread after each segment of both
/// [phases](Phase), and ten times a second while it waits for one.
pub fn build(
    tree: &Tree,
    options: &Options,
    file: &dyn ImageFile,
    on_progress: &mut OnProgress<'_>,
) -> Result<Summary> {
    options.check()?;
    file.set_len(0).map_err(|source| BuildError::Write { offset: 0, source })?;
    let geometry = devices::Geometry::of(tree, options)?;
    let output = output::Output::new(file, &geometry, options.target);
    write(tree, options, geometry, output, on_progress)
}

/// Completes the image of a tree whose contents lie there already, as [`Placing`](source::tar::Placing) has written them with
/// the same options. Like [`build`] otherwise.
pub fn build_placed(
    tree: &Tree,
    options: &Options,
    begun: source::tar::Begun<'_>,
    on_progress: &mut OnProgress<'_>,
) -> Result<Summary> {
    write(tree, options, devices::Geometry::with_contents(), begun.0, on_progress)
}

fn write<'a>(
    tree: &'a Tree,
    options: &'a Options,
    geometry: devices::Geometry,
    output: output::Output<'a>,
    on_progress: &mut OnProgress<'_>,
) -> Result<Summary> {
    let Division { threads, in_flight_bytes, .. } = Division::of(options)?;
    let plan = plan::Plan::new(tree, options.build_time, options.form.inodes.loses_times())?;
    let writer = writer::Writer::new(tree, &plan, options, geometry, output, on_progress)?;
    let order = sort::Order::new(tree, &options.sort)?;
    let summary = writer.write(|writer| contents::fill(writer, &order, threads, in_flight_bytes))?;
    tree.spill().check()?;
    Ok(Summary { listed: order.listed(), threads, ..summary })
}
