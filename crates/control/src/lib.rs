//! The code that the commands (`pagefold`) and the server processes (`pagefold-server`) share.
//!
//! | module | contents |
//! |---|---|
//! | `error` | errors of commands: a message and an exit code |
//! | `instance` | the runtime folder: running disks and mounts, their locks and state, cleaning up after dead servers |
//! | `config` | the configuration that a command passes to the server that it starts |
//! | `backing` | opening the backing of a disk by its path |
//! | `media` | the image and devices that a command or a server opens, and their digests |
//! | `export_kind` | the table of exports |
//! | `startup` | a command starts a server process and waits until its device is ready |
//! | `removal` | the steps of removing a disk |
//! | `named_files` | the files that requests name, which commands open |
//! | `protocol`, `client` | the control socket: its messages, and the commands' side of it |
//! | `report` | the reports of servers on themselves, as plain data |
//! | `text` | times, counts and dates for people |
//!
//! An *instance* is one running server process with what it serves: a disk, or a mounted image. It has a folder in the
//! runtime folder. A command creates the folder and holds its lock ([`instance`]), starts the server and passes it the
//! lock and the configuration ([`startup`]), and leaves. Later commands find the folder and send requests to the
//! control socket in it ([`client`]).
//!
//! Two kinds of file locks (flock) order the processes: that of the runtime folder, held while a folder in it is made,
//! judged or removed, and that of each instance, held by its server. A process may wait for the lock of the runtime
//! folder. It never waits for the lock of an instance, but only tries it. So a server, which holds the lock of its
//! instance, can wait for that of the runtime folder without a deadlock.
//!
//! It serves nothing and compresses nothing: `pagefold-server` does. It prints nothing: `pagefold` does.

#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod backing;
pub mod client;
pub mod config;
pub mod error;
pub mod export_kind;
pub mod instance;
pub mod media;
pub mod named_files;
pub mod path;
pub mod protocol;
pub mod removal;
pub mod report;
pub mod startup;
pub mod text;

/// Whether the peer on a unix socket, a process of user `uid`, is trusted: it runs as root or as the user of this
/// process.
pub fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == pagefold_sys::confine::owner_uid()
}
