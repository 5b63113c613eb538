//! Frames that a writer takes before it stores an object.
//!
//! A put that finds too few ready frames fails, because it must not sleep under its locks. If the writer only waited
//! until some frame is ready and retried, other writers could take that frame first, again and again, and an object
//! that needs two frames might never get both (starvation). So the writer takes the frames for itself, with no lock
//! held, and the next put uses them.

use crate::error::SourceError;
use crate::frame::Frames;
use crate::source::{FrameSource, Purpose};

/// Frames, backed by memory, that one writer has taken in advance; unused ones are released on drop.
pub struct BackedFrames<'a> {
    source: &'a dyn FrameSource,
    purpose: Purpose,
    frames: Frames,
    /// Frames that are charged but not obtained yet.
    charged: usize,
}

impl<'a> BackedFrames<'a> {
    /// Creates an empty set for frames from `source`, charged to `purpose`.
    pub fn new(source: &'a dyn FrameSource, purpose: Purpose) -> Self {
        BackedFrames { source, purpose, frames: Frames::none(), charged: 0 }
    }

    /// Charges as many frames as are missing from `count`. Never sleeps.
    ///
    /// On an error all frames are released, so that a writer that waits for memory keeps none that another could use.
    pub fn charge(&mut self, count: usize) -> Result<(), SourceError> {
        let missing = count.saturating_sub(self.frames.len() + self.charged);
        match self.source.charge(self.purpose, missing) {
            Ok(()) => {
                self.charged += missing;
                Ok(())
            }
            Err(error) => {
                self.clear();
                Err(error)
            }
        }
    }

    /// Obtains the charged frames; may sleep. Call it with no lock held.
    pub fn fill(&mut self) -> Result<(), SourceError> {
        let mut obtained = self.source.obtain(self.charged)?;
        self.charged = 0;
        while let Some(frame) = obtained.pop() {
            self.frames.push(frame);
        }
        Ok(())
    }

    /// The frames, to pass to a put.
    pub fn frames(&mut self) -> &mut Frames {
        &mut self.frames
    }

    fn clear(&mut self) {
        while let Some(frame) = self.frames.pop() {
            self.source.release(frame, self.purpose);
        }
        self.source.refund(self.purpose, std::mem::take(&mut self.charged));
    }
}

impl Drop for BackedFrames<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}
