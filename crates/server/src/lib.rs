//! The server processes: one for each disk, and one for each mounted image.
//!
//! | module | contents |
//! |---|---|
//! | `serve` | the entry point of a server process: receives the configuration from the command |
//! | `disk_server` | the server of a disk: set-up, requests of commands, shutdown, the report |
//! | `mount` | the server of a mounted image |
//! | `broker` | the process with rights of a server that is confined |
//! | `confinement` | what confined servers and commands keep |
//! | `keeper` | the process that lets a mount outlive its server |
//! | `export` | the exports of a disk: NBD, or FUSE and a loop device |
//! | `attributes` | the table of attributes of a disk |
//! | `disk` | a disk: its store, its medium, writeback passes, refused writes |
//! | `startup` | the socket to the command that started the server |
//! | `socket` | the server's side of the control socket |
//! | `log`, `log_bound`, `errors`, `similar` | the log, and the bound of its file; errors of the store and of exports as errors of commands; words that users meant |
//!
//! Each module uses only those below it in this table. The code that commands and servers share is in
//! `pagefold-control`.
//!
//! The threads of the server of a disk: the main thread sets up ([`serve_from_stdin`] -> `disk_server` -> `disk`,
//! `export`) and then waits for the end; the threads of the export serve requests for pages; the thread `control`
//! accepts commands and starts a thread `control-client` for each, and a pass on request adds a thread `pass`; then
//! there are the threads of automatic writeback, which the server starts, and of the store's reserve; the thread `log`
//! writes the log. Requests for pages take no lock of this crate, except that a write takes that of
//! `disk::refusal_tracker` while writes are refused.

#![deny(clippy::print_stdout, clippy::print_stderr)]

/// Makes a report from fields of a value that have the same names, and from further fields.
macro_rules! copied {
    ($report:ident from $value:ident: $($field:ident)*; $($further:tt)*) => {
        $report { $($field: $value.$field,)* $($further)* }
    };
}

pub mod attributes;
mod broker;
pub mod confinement;
pub mod disk;
mod disk_server;
mod errors;
mod export;
pub mod fetcher;
mod keeper;
mod log;
mod log_bound;
pub mod mount;
mod panics;
mod serve;
mod similar;
mod socket;
mod startup;
mod transport;

pub use serve::serve_from_stdin;
