//! Frames that a writer holds before it puts an object.
//!
//! A put that finds no frame ready fails, because it may not sleep under the locks it
//! holds. If the writer only waited until *some* frame is ready and tried again, other
//! writers could take that frame first, again and again, and an object that needs two
//! frames would never find both. So the writer takes the frames for itself here, and the
//! put that follows uses them and asks nobody.

use crate::source::{Frames, PageSource, Purpose, SourceError};

/// Frames that one writer has taken ahead; what is left of them goes back when it is dropped.
pub struct FrameStock<'a> {
    source: &'a dyn PageSource,
    purpose: Purpose,
    frames: Frames,
    /// Charges for which there is no frame yet.
    charged: usize,
}

impl<'a> FrameStock<'a> {
    /// An empty stock of frames from `source`, to be charged to `purpose`.
    pub fn new(source: &'a dyn PageSource, purpose: Purpose) -> Self {
        FrameStock { source, purpose, frames: Frames::none(), charged: 0 }
    }

    /// Charges as many frames as are missing from `count`. Never sleeps.
    ///
    /// On an error the stock is empty: a writer that waits for room holds none that another could use.
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

    /// Obtains the frames that were charged; may sleep. Call with no lock held.
    pub fn fill(&mut self) -> Result<(), SourceError> {
        let mut obtained = self.source.obtain(self.charged)?;
        self.charged = 0;
        while let Some(frame) = obtained.pop() {
            self.frames.push(frame);
        }
        Ok(())
    }

    /// The frames, for a put to use.
    pub fn frames(&mut self) -> &mut Frames {
        &mut self.frames
    }

    fn clear(&mut self) {
        while let Some(frame) = self.frames.pop() {
            self.source.give(frame, self.purpose);
        }
        self.source.refund(self.purpose, std::mem::take(&mut self.charged));
    }
}

impl Drop for FrameStock<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}
