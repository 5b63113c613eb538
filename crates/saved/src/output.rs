//! [`Output`]: where a writer puts its bytes, and their digest.
//!
//! [`PlainOutput`] does both in the thread of the writer. [`ThreadedOutput`] hashes in one thread and writes in another,
//! so that a save of pages in memory takes the time of the slowest of the three.

use sha2::{Digest, Sha256};
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// How many blocks may wait for a thread.
const QUEUED: usize = 8;

/// The output of a writer.
pub trait Output {
    /// An empty buffer, with the capacity of an earlier one if there is one.
    fn buffer(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// Writes bytes behind those before. An error may be that of earlier bytes.
    fn put(&mut self, bytes: Vec<u8>) -> io::Result<()>;

    /// SHA-256 of all bytes so far.
    fn digest(&mut self) -> io::Result<[u8; 32]>;

    /// Waits until all bytes are written.
    fn end(&mut self) -> io::Result<()>;
}

/// Writes and hashes in the thread of the caller.
pub struct PlainOutput<W> {
    inner: W,
    hash: Sha256,
}

impl<W: Write> PlainOutput<W> {
    /// An output to `inner`.
    pub fn new(inner: W) -> Self {
        PlainOutput { inner, hash: Sha256::new() }
    }

    /// The writer that it writes to.
    pub fn into_inner(self) -> W {
        self.inner
    }
}

impl<W: Write> Output for PlainOutput<W> {
    fn put(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        self.hash.update(&bytes);
        self.inner.write_all(&bytes)
    }

    fn digest(&mut self) -> io::Result<[u8; 32]> {
        Ok(self.hash.clone().finalize().into())
    }

    fn end(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Bytes, or the request for the digest of those before.
enum Work {
    Bytes(Vec<u8>),
    Digest(SyncSender<[u8; 32]>),
}

/// Hashes in one thread, and writes in another one.
pub struct ThreadedOutput {
    work: Option<SyncSender<Work>>,
    recycled: Receiver<Vec<u8>>,
    threads: Option<(JoinHandle<()>, JoinHandle<io::Result<()>>)>,
}

impl ThreadedOutput {
    /// Starts the threads, which end with this value.
    pub fn start(mut inner: impl Write + Send + 'static) -> io::Result<Self> {
        let (work, to_hash) = sync_channel::<Work>(QUEUED);
        let (hashed, to_write) = sync_channel::<Vec<u8>>(QUEUED);
        let (recycle, recycled) = sync_channel::<Vec<u8>>(2 * QUEUED);
        let hasher = move || {
            let mut hash = Sha256::new();
            for work in to_hash {
                match work {
                    // The writer has failed if nobody takes the bytes; then the next call fails.
                    Work::Bytes(bytes) => {
                        hash.update(&bytes);
                        if hashed.send(bytes).is_err() {
                            return;
                        }
                    }
                    Work::Digest(answer) => _ = answer.send(hash.clone().finalize().into()),
                }
            }
        };
        let writer = move || {
            for bytes in to_write {
                inner.write_all(&bytes)?;
                // One that nobody needs is freed.
                let _ = recycle.try_send(bytes);
            }
            inner.flush()
        };
        let hasher = std::thread::Builder::new().name("save-hash".into()).spawn(hasher)?;
        let writer = std::thread::Builder::new().name("save-write".into()).spawn(writer)?;
        Ok(ThreadedOutput { work: Some(work), recycled, threads: Some((hasher, writer)) })
    }

    /// Waits for the threads, which end because there is no more work, and returns their error.
    fn join(&mut self) -> io::Result<()> {
        self.work = None;
        let Some((hasher, writer)) = self.threads.take() else { return Ok(()) };
        let panicked = || io::Error::other("a thread of the save panicked");
        let hashed = hasher.join().map_err(|_| panicked());
        writer.join().map_err(|_| panicked())?.and(hashed)
    }

    fn failed(&mut self) -> io::Error {
        self.join().err().unwrap_or_else(|| io::Error::other("the threads of the save have ended"))
    }
}

impl Output for ThreadedOutput {
    fn buffer(&mut self) -> Vec<u8> {
        self.recycled.try_recv().unwrap_or_default()
    }

    fn put(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        match self.work.as_ref().map(|work| work.send(Work::Bytes(bytes))) {
            Some(Ok(())) => Ok(()),
            _ => Err(self.failed()),
        }
    }

    fn digest(&mut self) -> io::Result<[u8; 32]> {
        let (answer, digest) = sync_channel(1);
        let asked = self.work.as_ref().map(|work| work.send(Work::Digest(answer)));
        match (asked, digest.recv()) {
            (Some(Ok(())), Ok(digest)) => Ok(digest),
            _ => Err(self.failed()),
        }
    }

    fn end(&mut self) -> io::Result<()> {
        self.join()
    }
}

impl Drop for ThreadedOutput {
    fn drop(&mut self) {
        // The error, if any, was that of an earlier call.
        let _ = self.join();
    }
}
