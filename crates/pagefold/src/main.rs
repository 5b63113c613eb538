//! The `pagefold` command.
//!
//! The binary is the top layer: it reads the command line, keeps the runtime
//! folder, runs the server process of each disk and talks to it. It has four folders: [`commands`] (one file per
//! command), [`cli`] (words in, text out), [`service`] (the server process and its control socket) and [`runtime`]
//! (folder, locks, state, clean-up after dead servers). They are parts, not layers: `cli` turns words into the
//! requests of `service` and prints its reports, and `runtime` asks `service` how to clear an export.
//!
//! It compresses nothing and speaks no block protocol: those are the crates below.

// Printing panics when it cannot write: `cli::output` does it.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod cli;
mod commands;
mod failure;
mod runtime;
mod service;

fn main() -> std::process::ExitCode {
    commands::run()
}
