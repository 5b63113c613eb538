//! Serves block devices to other programs, over NBD or as `/dev/loopN`, and makes a store such a device.
//!
//! A [`BlockDevice`] reads and writes byte ranges. An export serves any `Arc<dyn BlockDevice>`. This serves a
//! compressed device on a unix socket, for any NBD client:
//!
//! ```
//! use pagefold_block::StoreDevice;
//! use pagefold_block::nbd::{Export, Limits, Server, UnixSocket, uri};
//! use pagefold_store::{Store, StoreConfig};
//! use std::sync::Arc;
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("disk.sock");
//! let device = Arc::new(StoreDevice::new(Arc::new(Store::new(StoreConfig::new(1 << 30))?)));
//! let server = Server::new(Export::new("disk", "a compressed disk", device)?, Limits::default());
//! server.serve_unix(UnixSocket::bind(&path)?)?; // in threads, until the server is dropped
//! println!("nbdcopy disk.img '{}'", uri::unix("disk", &path));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! As root, [`loop_export`] makes it a block device of the kernel:
//!
//! ```no_run
//! use pagefold_block::RamDevice;
//! use pagefold_block::loop_export::{LoopExport, LoopOptions};
//! use std::sync::Arc;
//!
//! std::fs::create_dir("mnt")?;
//! let device = Arc::new(RamDevice::new(1 << 30));
//! let mut export = LoopExport::start(device, "mnt".as_ref(), LoopOptions::default())?;
//! println!("{}", export.device_path().display()); // for mkfs, mount, mkswap
//! export.stop()?; // refused while the device is in use
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it is for
//!
//! [`StoreDevice`] implements [`BlockDevice`] over a store, [`RamDevice`] over plain memory, and a layer such as
//! [`Metered`] or [`ReplaceableDevice`] over another device. The exports know protocols and nothing of compression, so their tests run on plain
//! memory and inject faults by a layer.
//!
//! # Limits
//!
//! A device at its memory limit fails a write that needs more memory than what it replaces with [`BlockError::NoSpace`], which both exports return to the client
//! as ENOSPC. This crate does not parse command lines, keep runtime folders, or know codecs.
//!
//! # How it works
//!
//! A request takes one of two paths:
//!
//! - [`loop_export`]: the kernel's loop driver sends it to a FUSE file. A session thread receives it in `fuse/fs.rs`
//!   and calls the device.
//! - [`nbd`]: the thread of the client's connection receives it (`nbd/connection.rs`), and `nbd/transmission.rs`
//!   decodes it and calls the device.
//!
//! The thread that receives a request executes it. Only NBD passes requests on: those that would wait for the medium or
//! for memory go to further threads of their connection (`nbd/deferred.rs`). No lock of this crate is held while the
//! device is called, but that of a [`ReplaceableDevice`], for reading.

// Printing panics when it cannot write. Only the binary prints, in one file.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod device;
mod error;
mod export_error;
pub mod fuse;
pub mod loop_export;
pub mod metered;
pub mod nbd;
mod operation;
mod ram;
mod replaceable;
mod store_device;

pub use device::{BlockDevice, Extent, ExtentKind};
pub use error::BlockError;
pub use metered::Metered;
pub use ram::RamDevice;
pub use replaceable::ReplaceableDevice;
pub use store_device::StoreDevice;
