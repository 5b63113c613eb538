//! A stream of any length as an object: in parts, several on their way at once, in bounded memory.
//!
//! The end of a stream does not say that it is complete: its writer may have failed. So the object is completed when the
//! caller says so, by [`Go::go`]; when the [`Go`] is dropped, the upload is aborted, wherever it is.

use crate::error::BucketError;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload};
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The first part, bytes. S3 takes parts from 5 MiB on.
const PART_BYTES: usize = 8 << 20;
/// After so many parts they double. Stores take up to 10 000 parts, so these are enough for 500 GiB.
const DOUBLING_PARTS: usize = 2000;
/// The longest part, bytes.
const PART_BYTES_MAX: usize = 128 << 20;
/// Parts that are on their way at once.
const PARTS_IN_FLIGHT: usize = 4;
/// The time that a store has to abort an upload.
const ABORT_LIMIT: Duration = Duration::from_secs(15);

/// An upload that is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uploaded {
    /// Bytes of the object.
    pub len_bytes: u64,
}

/// The right to complete an upload. Dropped before the upload has ended, it aborts the upload.
pub struct Go(watch::Sender<Option<u64>>);

/// The end of an upload that waits for [`Go`].
pub struct Verdict(watch::Receiver<Option<u64>>);

/// A pair for one upload.
pub fn verdict() -> (Go, Verdict) {
    let (go, verdict) = watch::channel(None);
    (Go(go), Verdict(verdict))
}

impl Go {
    /// Lets the upload complete the object when the stream has ended, if it has this length.
    pub fn go(&self, len_bytes: u64) {
        // If the upload has failed, its own error says more.
        let _ = self.0.send(Some(len_bytes));
    }
}

impl Verdict {
    /// The result of `work`, unless the upload is given up before.
    async fn unless_given_up<T>(&mut self, work: impl Future<Output = T>) -> Result<T, BucketError> {
        let dropped = async { while self.0.changed().await.is_ok() {} };
        tokio::select! {
            done = work => Ok(done),
            () = dropped => Err(BucketError::GivenUp),
        }
    }

    /// Waits for the verdict, which has to be for this length.
    async fn for_length(&mut self, len_bytes: u64) -> Result<(), BucketError> {
        loop {
            match *self.0.borrow_and_update() {
                Some(wanted) if wanted == len_bytes => return Ok(()),
                Some(wanted) => {
                    let what = format!("the stream has {len_bytes} bytes in place of {wanted}");
                    return Err(BucketError::Input { what });
                }
                None => {}
            }
            self.0.changed().await.map_err(|_| BucketError::GivenUp)?;
        }
    }
}

/// Reads the stream to its end, and uploads it. After an error the object may be there, if that was lost on the way.
pub(crate) async fn put_stream(
    store: Arc<dyn ObjectStore>,
    path: Path,
    input: Box<dyn Read + Send>,
    mut verdict: Verdict,
) -> Result<Uploaded, BucketError> {
    let (mut input, first) = verdict.unless_given_up(read_part(input, PART_BYTES)).await??;
    if first.len() < PART_BYTES {
        let len_bytes = first.len() as u64;
        verdict.for_length(len_bytes).await?;
        verdict.unless_given_up(store.put(&path, PutPayload::from(first))).await??;
        return Ok(Uploaded { len_bytes });
    }
    let mut upload = verdict.unless_given_up(store.put_multipart(&path)).await??;
    let sent = send_parts(&mut *upload, &mut input, first, &mut verdict).await;
    let completed = match sent {
        Ok(len_bytes) => match verdict.unless_given_up(upload.complete()).await {
            Ok(Ok(_)) => Ok(Uploaded { len_bytes }),
            Ok(Err(e)) => Err(e.into()),
            Err(e) => Err(e),
        },
        Err(e) => Err(e),
    };
    if completed.is_err() {
        // The first error says more; what stays is removed by the bucket's rules.
        let _ = tokio::time::timeout(ABORT_LIMIT, upload.abort()).await;
    }
    completed
}

/// Uploads the `first` part and the rest of the stream; returns its length.
async fn send_parts(
    upload: &mut dyn MultipartUpload,
    input: &mut Option<Box<dyn Read + Send>>,
    first: Vec<u8>,
    verdict: &mut Verdict,
) -> Result<u64, BucketError> {
    let mut parts = JoinSet::new();
    let (mut part, mut len_bytes, mut count) = (first, 0, 0);
    loop {
        len_bytes += part.len() as u64;
        parts.spawn(upload.put_part(PutPayload::from(part)));
        count += 1;
        while parts.len() >= PARTS_IN_FLIGHT {
            verdict.unless_given_up(next(&mut parts)).await??;
        }
        let Some(rest) = input.take() else { break };
        let part_bytes = (PART_BYTES << (count / DOUBLING_PARTS).min(8)).min(PART_BYTES_MAX);
        // Parts go on while the next one is read.
        let (rest, read) = {
            let reading = read_part(rest, part_bytes);
            tokio::pin!(reading);
            loop {
                tokio::select! {
                    read = verdict.unless_given_up(&mut reading) => break read??,
                    sent = next(&mut parts), if !parts.is_empty() => sent?,
                }
            }
        };
        *input = rest;
        part = read;
        if part.is_empty() {
            break;
        }
    }
    while !parts.is_empty() {
        verdict.unless_given_up(next(&mut parts)).await??;
    }
    verdict.for_length(len_bytes).await?;
    Ok(len_bytes)
}

/// Waits for one of the parts.
async fn next(parts: &mut JoinSet<object_store::Result<()>>) -> Result<(), BucketError> {
    match parts.join_next().await {
        None | Some(Ok(Ok(()))) => Ok(()),
        Some(Ok(Err(e))) => Err(e.into()),
        Some(Err(e)) => Err(BucketError::Failed { what: e.to_string() }),
    }
}

/// A stream that has not ended, and the part that was read.
type Part = (Option<Box<dyn Read + Send>>, Vec<u8>);

/// Reads a part: shorter only at the end of the stream, which is not returned then.
async fn read_part(mut input: Box<dyn Read + Send>, part_bytes: usize) -> Result<Part, BucketError> {
    let read = tokio::task::spawn_blocking(move || {
        let mut part = Vec::with_capacity(part_bytes.min(PART_BYTES));
        let read = (&mut input).take(part_bytes as u64).read_to_end(&mut part);
        (input, part, read)
    });
    let failed = |what: String| BucketError::Input { what };
    let (input, part, read) = read.await.map_err(|e| failed(e.to_string()))?;
    match read {
        Ok(_) if part.len() < part_bytes => Ok((None, part)),
        Ok(_) => Ok((Some(input), part)),
        Err(e) => Err(failed(e.to_string())),
    }
}
