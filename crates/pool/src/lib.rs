//! Allocates compressed objects of 1 to 4096 bytes densely: a store of a million of them wastes about one per cent.
//!
//! Objects of one size class are packed without gaps in a chain of 4 KiB frames, and an object may straddle two frames.
//! [`Pool`] needs an owner for each object, which it calls to move the object:
//!
//! ```
//! use pagefold_pool::{Arena, BackedFrames, Handle, Owner, Pool, PutError, Purpose, Relocate};
//! use std::mem::MaybeUninit;
//! use std::sync::Arc;
//!
//! /// An owner that keeps all objects where they are.
//! struct Fixed;
//!
//! // SAFETY: it never returns true.
//! unsafe impl Relocate for Fixed {
//!     fn relocate(&self, _: Owner, _: Handle, _: Handle) -> bool {
//!         false
//!     }
//! }
//!
//! let arena = Arc::new(Arena::new(64 << 20)?);
//! let pool = Pool::new(arena.clone());
//! let (bytes, owner) = (b"some compressed bytes", Owner::new(7));
//! let handle = match pool.try_put(bytes, owner) {
//!     Err(PutError::NotReady { frames }) => {
//!         // Taking memory may sleep, so the caller does it when it holds no lock.
//!         let mut ready = BackedFrames::new(pool.source(), Purpose::Objects);
//!         ready.charge(frames)?;
//!         ready.fill()?;
//!         pool.try_put_from(ready.frames(), bytes, owner)?
//!     }
//!     put => put?,
//! };
//! let mut copy = [MaybeUninit::uninit(); 21];
//! // SAFETY: the handle is live, the object has 21 bytes, and it is neither freed nor moved meanwhile.
//! assert_eq!(unsafe { pool.copy_out(handle, &mut copy) }, bytes);
//! // SAFETY: the handle is live, and is not used again.
//! unsafe { pool.free(handle, &Fixed) };
//! assert_eq!(arena.in_use_bytes(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it is for
//!
//! The store keeps compressed pages in it. An object of 3.7 kB uses 3.7 kB: no frame has an unusable tail. A freed
//! object leaves a hole, which the next allocation of the class reuses. When there are too many holes, objects from the
//! end of the chain are moved into them, and the chain is shortened (compaction).
//!
//! # Limits and failures
//!
//! A put that finds too few ready frames fails with [`PutError::NotReady`] and changes nothing. The caller takes the
//! frames with [`BackedFrames`], which may sleep, and retries. The arena compares its limit with the frames in use
//! for objects.
//!
//! The pool does not know what an object contains or who may read it. Readers and the owner's exchange are ordered by
//! the owner's lock (the slot's); the functions that rely on it are `unsafe` and say so.
//!
//! # How it works
//!
//! There is no table of handles: a handle is a size class and a position in the arena. Each object begins with one
//! [`Owner`] word. To move an object, the pool calls its owner ([`Relocate`]), which replaces the old handle by the new
//! one or refuses.
//!
//! | module | contains |
//! |---|---|
//! | `pool`, `class`, `size_class`, `owner` | the operations; one size class; the sizes of the classes; an object's first word |
//! | `source`, `error`, `layer` | [`FrameSource`], the interface to take frames; its errors; a source for fault tests (feature `testing`) |
//! | `arena`, `frame` | [`Arena`], the real source: one range of address space; frames and their numbers, positions, handles |
//! | `heap` | the memory of an arena under Miri |
//! | `backed_frames` | frames that a writer takes before it stores an object |
//! | `recovery` | finding the objects in the memory of a process that has died |
//! | `reserve` | the threads that keep locked frames ready for devices used as swap |
//!
//! *Threads and locks.* All operations run in the caller's thread; only a [`Reserve`] has threads. Each size class has
//! a lock, held for list operations and for moving objects, not for compression. While it holds a class's lock, the
//! pool may take the lock of the arena's free lists (to take or release frames). It also calls [`Relocate::relocate`]
//! while it holds the class's lock; `relocate` must not wait for a thread that uses the pool. No lock of a class is held
//! while a thread waits for memory: writers wait for an empty reserve in its queue (`arena`).
//!
//! # Checks of the unsafe code
//!
//! Debug builds check that each frame has one owner, and Miri runs tests of this crate, with all memory on the heap (`heap`):
//! `MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance" cargo +nightly miri test -p pagefold-pool --test pool
//! any_history`.

// Printing panics when it cannot write. Only the binary prints, in one file.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod arena;
mod backed_frames;
mod class;
mod error;
mod frame;
#[cfg(miri)]
mod heap;
#[cfg(feature = "testing")]
mod layer;
mod owner;
mod pool;
#[cfg(not(miri))]
mod recovery;
mod reserve;
mod size_class;
mod source;

pub use arena::{Arena, ArenaStats, LINK_LEN};
pub use backed_frames::BackedFrames;
pub use error::SourceError;
pub use frame::{FRAME_LEN, FRAMES_MAX, Frame, FrameId, Frames, Handle};
#[cfg(feature = "testing")]
pub use layer::RefuseNth;
pub use owner::Owner;
pub use pool::{ClassStats, Compaction, ObjectFit, Pool, PutError, Relocate};
#[cfg(not(miri))]
pub use recovery::Recovery;
pub use reserve::Reserve;
pub use size_class::{OBJECT_LEN_MAX, is_smaller_class};
pub use source::{FrameSource, Purpose, REPLACEMENT_FRAMES_MAX, Take};
