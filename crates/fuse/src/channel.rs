//! [`Channel`], the classic transport: it reads requests from a descriptor of `/dev/fuse`, and writes replies to it.
//! And the buffers for both.

use crate::abi::{InHeader, NOTIFY_RESEND, OutHeader, RECEIVE_BYTES_MIN, WriteIn};
use crate::answer::Answer;
use crate::types::{Errno, error_in_reply};
use pagefold_page::{AlignedBytes, PAGE_SIZE};
use pagefold_sys::fusering::StopEvent;
use pagefold_sys::{SysError, fusedev, mem, ready};
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Bytes of a write request before its data.
const WRITE_HEADERS: usize = size_of::<InHeader>() + size_of::<WriteIn>();

/// Other bytes than zeroes, so that all pages of a new buffer are in memory: a zeroed allocation may map the kernel's
/// zero page, and its first use would have to fault each page in.
const FILL: u8 = 0xff;

/// A descriptor of `/dev/fuse`.
#[derive(Debug)]
pub(crate) struct Channel {
    file: File,
    /// The event that ends the wait for requests, beside the end of the mount.
    stop: Option<Arc<StopEvent>>,
}

impl Channel {
    pub(crate) fn new(file: File) -> Self {
        Channel { file, stop: None }
    }

    /// The same channel, whose wait for requests `stop` ends. It must be the only one of the mount.
    pub(crate) fn until(self, stop: Arc<StopEvent>) -> Self {
        Channel { stop: Some(stop), ..self }
    }

    /// The event that [`until`](Self::until) was called with.
    pub(crate) fn stop(&self) -> Option<&Arc<StopEvent>> {
        self.stop.as_ref()
    }

    /// The descriptor.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Descriptors of the same mount for so many threads, this one first; `open` opens unconnected ones. The kernel keeps the
    /// requests of each apart.
    pub(crate) fn with_clones(
        self,
        threads: usize,
        open: &dyn Fn() -> Result<File, SysError>,
    ) -> Result<Vec<Self>, SysError> {
        let clones = (1..threads).map(|_| fusedev::clone_channel(&self.file, open()?).map(Channel::new));
        let clones = clones.collect::<Result<Vec<_>, _>>()?;
        Ok(std::iter::once(self).chain(clones).collect())
    }

    /// Waits for the next request. `None`: the file system is unmounted, or its connection was aborted.
    pub(crate) fn receive<'a>(&self, buffer: &'a mut ReceiveBuffer) -> io::Result<Option<&'a [u8]>> {
        loop {
            if let Some(stop) = &self.stop
                && let Ok([_, true]) = ready::wait([self.file.as_fd(), stop.as_fd()], None)
            {
                return Ok(None);
            }
            match (&self.file).read(buffer.room()) {
                Ok(len) => return Ok(buffer.received(len)),
                Err(e) => match e.raw_os_error() {
                    // ENOENT: the request was interrupted or aborted before it was received.
                    Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => {}
                    Some(libc::ENODEV) => return Ok(None),
                    _ => return Err(e),
                },
            }
        }
    }

    /// Asks the kernel to send all requests again that were received from a channel of the mount and not answered. The
    /// other channels must not be read meanwhile: what they have just received would be sent twice.
    pub(crate) fn resend(&self) -> io::Result<()> {
        let len = size_of::<OutHeader>() as u32;
        // A message without an id is a notification, and its error the number of that.
        self.send(&[OutHeader { len, error: NOTIFY_RESEND, unique: 0 }.as_bytes()])
    }

    /// Replies to the request `id`, with what is in `buffer` if `result` says so.
    pub(crate) fn reply(&self, id: u64, result: &Result<Answer, Errno>, buffer: &mut ReplyBuffer) {
        let sent = match result {
            Ok(Answer::Nothing) => return,
            Ok(Answer::Buffer(len)) => self.send(&[buffer.message(id, *len)]),
            Ok(Answer::Owned(data)) => self.send(&[header(id, data.len(), 0).as_bytes(), data]),
            Err(e) => self.send_error(id, *e),
        };
        match sent {
            // ENOENT: nobody waits for the request any more. ENODEV: the connection was aborted.
            Err(e) if !matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => {
                // The kernel did not accept the reply: without another one, the program would wait forever.
                let _ = self.send_error(id, Errno(libc::EIO));
            }
            _ => {}
        }
    }

    fn send_error(&self, id: u64, error: Errno) -> io::Result<()> {
        self.send(&[header(id, 0, error_in_reply(error)).as_bytes()])
    }

    /// Sends a message with one call, as the kernel demands. It takes all of it or nothing.
    fn send(&self, message: &[&[u8]]) -> io::Result<()> {
        let sent = match message {
            [header, data] => (&self.file).write_vectored(&[IoSlice::new(header), IoSlice::new(data)]),
            [one] => (&self.file).write(one),
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        sent.map(drop)
    }
}

fn header(id: u64, data_bytes: usize, error: i32) -> OutHeader {
    let len = u32::try_from(size_of::<OutHeader>() + data_bytes).unwrap_or(u32::MAX);
    OutHeader { len, error, unique: id }
}

/// Where a request is received. The data of a write begin at a page, because the kernel copies whole pages faster.
#[derive(Debug)]
pub(crate) struct ReceiveBuffer(AlignedBytes);

impl ReceiveBuffer {
    const START: usize = PAGE_SIZE - WRITE_HEADERS;

    /// A buffer for writes of at most `write_bytes` bytes.
    pub(crate) fn new(write_bytes: usize) -> Self {
        ReceiveBuffer(AlignedBytes::new(PAGE_SIZE + write_bytes.max(RECEIVE_BYTES_MIN), FILL))
    }

    fn room(&mut self) -> &mut [u8] {
        &mut self.0[Self::START..]
    }

    /// Keeps it in memory, as far as this process may. See [`ReplyBuffer::lock`].
    pub(crate) fn lock(&self) {
        let _ = mem::lock(&self.0);
    }

    fn received(&self, len: usize) -> Option<&[u8]> {
        self.0[Self::START..].get(..len)
    }
}

/// Where a reply is built. The data begin at a page; the header is before it, so that one call sends both.
#[derive(Debug)]
pub(crate) struct ReplyBuffer(AlignedBytes);

impl ReplyBuffer {
    const HEADER: usize = PAGE_SIZE - size_of::<OutHeader>();

    /// A buffer for `len` bytes of data.
    pub(crate) fn new(len: usize) -> Self {
        ReplyBuffer(AlignedBytes::new(PAGE_SIZE + len, FILL))
    }

    /// Keeps it in memory, as far as this process may: if a process is killed while the kernel copies a request or a
    /// reply, and a page of the buffer is not there, the request fails, and no other server gets it.
    pub(crate) fn lock(&self) {
        let _ = mem::lock(&self.0);
    }

    /// Where the data are put.
    pub(crate) fn data(&mut self) -> &mut [u8] {
        &mut self.0[PAGE_SIZE..]
    }

    /// The reply to the request `id` with the first `len` bytes of data. Longer data are cut: `answer` returns none.
    fn message(&mut self, id: u64, len: usize) -> &[u8] {
        let len = len.min(self.0.len() - PAGE_SIZE);
        let message = &mut self.0[Self::HEADER..PAGE_SIZE + len];
        let (target, _) = message.split_at_mut(size_of::<OutHeader>());
        target.copy_from_slice(header(id, len, 0).as_bytes());
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromBytes;

    #[test]
    fn a_reply_has_its_header_before_the_data() {
        let mut buffer = ReplyBuffer::new(100);
        assert_eq!((buffer.data().len(), buffer.data().as_ptr().align_offset(PAGE_SIZE)), (100, 0));
        buffer.data()[..4].copy_from_slice(b"data");
        let (header, data) = OutHeader::read_from_prefix(buffer.message(7, 4)).unwrap();
        assert_eq!((header, data), (OutHeader { len: 20, error: 0, unique: 7 }, &b"data"[..]));
        assert_eq!(buffer.message(7, 101).len(), 116);
    }

    #[test]
    fn the_data_of_a_write_begin_at_a_page() {
        let mut buffer = ReceiveBuffer::new(1 << 20);
        assert_eq!(buffer.room()[WRITE_HEADERS..].as_ptr().align_offset(PAGE_SIZE), 0);
        assert_eq!(buffer.room().len(), WRITE_HEADERS + (1 << 20));
        assert!(ReceiveBuffer::new(4096).room().len() >= RECEIVE_BYTES_MIN);
    }
}
