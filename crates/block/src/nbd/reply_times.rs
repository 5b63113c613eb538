//! [`ReplyTimes`], how long the replies of one connection take: from when the server has received a read or write until it
//! has sent the reply.

use super::proto::cmd;
use crate::BlockDevice;
use crate::operation::Operation;
use std::collections::VecDeque;
use std::time::Instant;

/// A read or write, and when it was received.
pub type Arrival = (Operation, Instant);

/// The reads and writes of a connection that are not answered, but for those that other threads execute.
pub struct ReplyTimes {
    /// When the last input was received. Earlier input has been executed by then, but for a few requests.
    received: Instant,
    /// The request in progress.
    current: Option<Arrival>,
    /// Requests whose replies are in the output, and how many bytes the server has sent when it has sent the reply.
    unsent: VecDeque<(u64, Arrival)>,
    sent_bytes: u64,
}

impl ReplyTimes {
    pub fn new() -> Self {
        ReplyTimes { received: Instant::now(), current: None, unsent: VecDeque::new(), sent_bytes: 0 }
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

    /// Notes that the output, which has this length, ends with the reply of the request in progress.
    pub fn answer_current(&mut self, output_bytes: usize) {
        let current = self.current.take();
        self.answer(current, output_bytes);
    }

    /// Notes that the output, which has this length, ends with the reply of a request that another thread has executed.
    pub fn answer(&mut self, arrival: Option<Arrival>, output_bytes: usize) {
        let end = self.sent_bytes + output_bytes as u64;
        self.unsent.extend(arrival.map(|arrival| (end, arrival)));
    }

    /// Notes that so much of the output was sent.
    pub fn send(&mut self, sent_bytes: usize, device: &dyn BlockDevice) {
        self.sent_bytes += sent_bytes as u64;
        let now = Instant::now();
        while let Some((_, (operation, at))) = self.unsent.pop_front_if(|(end, _)| *end <= self.sent_bytes) {
            device.note_reply(operation, now.saturating_duration_since(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Metered, RamDevice};
    use std::sync::Arc;

    #[test]
    fn a_reply_is_counted_when_all_of_it_was_sent() {
        let device = Metered::new(Arc::new(RamDevice::new(4096)));
        let counts = || [Operation::Read, Operation::Write].map(|o| device.traffic(o).reply_latency.count());
        let mut times = ReplyTimes::new();
        times.begin(cmd::READ);
        times.answer_current(4112);
        times.begin(cmd::FLUSH);
        times.answer_current(4128);
        times.begin(cmd::WRITE);
        times.answer_current(4144);
        times.send(4111, &device);
        assert_eq!(counts(), [0, 0]);
        times.send(1, &device);
        assert_eq!(counts(), [1, 0]);
        times.send(31, &device);
        assert_eq!(counts(), [1, 0]);
        // The rest, and a request that another thread executes meanwhile.
        times.begin(cmd::READ);
        let deferred = times.current();
        times.leave_current();
        times.answer_current(1);
        times.send(1, &device);
        assert_eq!(counts(), [1, 1]);
        times.answer(deferred, 16);
        times.send(16, &device);
        assert_eq!(counts(), [2, 1]);
        assert!(times.unsent.is_empty());
    }
}
