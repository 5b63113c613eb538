//! The keeper: a small process that lets a disk or a mount outlive its server.
//!
//! It holds the open files without which they would be lost, starts the server, and starts another when that dies.
//! `docs/keeper.md` describes the protocol between both, and what survives what.
//!
//! | module | contents |
//! |---|---|
//! | `holder` | the keeper's process |
//! | `status` | its state file and its lines in the log |
//! | `successor` | a server's side: handing over, being the next, and starting a keeper anew |
//! | `link` | the messages between both |
//! | `handover` | the state that servers hand over: its descriptors, and the part of its JSON that all have |
//!
//! The keeper parses nothing that a server sends after the first foreign byte: to it, what a server hands over is a number of
//! descriptors and bytes. It reads the folder of the instance from the request to start, which comes before.
//! After the start of the first server it allocates no memory, except when a server hands over anew. It has one thread.

mod handover;
mod holder;
mod link;
mod status;
mod successor;

pub use handover::{Handover, Unpacked, duplicate, malformed};
pub use holder::{KEPT_BY_ROOT, adopt, keep};
pub use link::State;
pub use successor::{Beginning, ExitOnFailure, FAILED, KeeperLink, StartKeeper, replace_dead, starter};
