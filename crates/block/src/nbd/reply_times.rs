//! [`ReplyTimes`], how long the replies of one connection take: from when the server has received a read or write until it
//! has sent the reply.

use super::proto::cmd;
use crate::BlockDevice;
use crate::metered::Operation;
use std::time::Instant;

/// A read or write, and when it was received.
pub type Arrival = (Operation, Instant);

/// The reads and writes of a connection that are not answered, but for those that other threads execute.
pub struct ReplyTimes {
    /// When the input was received whose requests are executed.
    received: Instant,
    /// The request in progress.
    current: Option<Arrival>,
    /// Requests whose replies are in the output.
    unsent: Vec<Arrival>,
}

impl ReplyTimes {
    pub fn new() -> Self {
        ReplyTimes { received: Instant::now(), current: None, unsent: Vec::new() }
    }

    /// Notes that input was received.
    pub fn receive(&mut self) {
        self.received = Instant::now();
    }

    /// Notes that a request with this command begins.
    pub fn begin(&mut self, command: u16) {
        let operation = match command {
            cmd::READ => Some(Operation::Read),
            cmd::WRITE => Some(Operation::Write),
            _ => None,
        };
        self.current = operation.map(|operation| (operation, self.received));
    }

    /// Returns the request in progress.
    pub fn current(&self) -> Option<Arrival> {
        self.current
    }

    /// Notes that another thread executes the request in progress.
    pub fn leave_current(&mut self) {
        self.current = None;
    }

    /// Notes that the reply of the request in progress is in the output.
    pub fn answer_current(&mut self) {
        self.unsent.extend(self.current.take());
    }

    /// Notes that the reply of a request that another thread has executed is in the output.
    pub fn answer(&mut self, arrival: Option<Arrival>) {
        self.unsent.extend(arrival);
    }

    /// Notes that all of the output was sent.
    pub fn send(&mut self, device: &dyn BlockDevice) {
        if !self.unsent.is_empty() {
            let now = Instant::now();
            let sent = self.unsent.drain(..);
            sent.for_each(|(operation, at)| device.note_reply(operation, now.saturating_duration_since(at)));
        }
    }
}
