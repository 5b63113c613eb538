//! [`Session`], the state that all threads of a mount share, and how they answer a request.

use crate::answer::{Access, Answer, answer};
use crate::ending::Ending;
use crate::filesystem::FileSystem;
use crate::interrupt::Interrupts;
use crate::negotiate::Settings;
use crate::request::{Operation, Request};
use crate::types::{Errno, Transfer};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

/// The state that all threads of a mount share.
pub(crate) struct Session<F> {
    pub(crate) file_system: F,
    pub(crate) access: Access,
    /// Those for requests from `/dev/fuse`; requests of rings may be shorter.
    pub(crate) settings: Settings,
    /// Whether another server takes the mount over when this one dies.
    pub(crate) is_kept: bool,
    pub(crate) ending: Arc<Ending>,
    pub(crate) interrupts: Arc<Interrupts>,
}

impl<F: FileSystem> Session<F> {
    /// Answers a request, whichever way it came. See [`answer`].
    pub(crate) fn answer_request(&self, request: &Request<'_>, buffer: &mut [u8]) -> Result<Answer, Errno> {
        match request.operation {
            Operation::Interrupt { id } if F::CAN_BE_INTERRUPTED => {
                self.interrupts.add(id);
                Ok(Answer::Nothing)
            }
            _ if F::CAN_BE_INTERRUPTED => {
                self.interrupts.serve(request.id, || self.answer_or_fail(request, buffer))
            }
            _ => self.answer_or_fail(request, buffer),
        }
    }

    /// The same, without interruptions. A request of a stateless file system that panics fails with EIO. The panic hook of
    /// the process has reported the panic.
    fn answer_or_fail(&self, request: &Request<'_>, buffer: &mut [u8]) -> Result<Answer, Errno> {
        if !F::IS_STATELESS {
            return answer(&self.file_system, self.access, request, buffer);
        }
        // A reply with an error has no data, so the contents of the buffer do not matter.
        let run = AssertUnwindSafe(|| answer(&self.file_system, self.access, request, buffer));
        catch_unwind(run).unwrap_or_else(|_| {
            self.ending.count_panic(self.is_kept);
            Err(Errno(libc::EIO))
        })
    }
}

/// When a thread received a request, if the file system wants to know how long replies take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Received(Option<Instant>);

impl Received {
    pub(crate) fn now<F: FileSystem>() -> Self {
        Received(F::TIMES_REPLIES.then(Instant::now))
    }

    /// Tells the file system that the request with this opcode was answered.
    pub(crate) fn replied<F: FileSystem>(self, file_system: &F, opcode: u32) {
        if let (Some(at), Some(transfer)) = (self.0, Transfer::of(opcode)) {
            file_system.replied(transfer, at.elapsed());
        }
    }
}
