//! Saving a disk: copies the pages of a store to a file or a socket, in the format of `pagefold_saved`.
//!
//! The command opens the file, so the server needs no right for it. A socket has a timeout for writes, which its command
//! has set: so the save notices that it is to end, also if nobody reads.

use super::passes::{PassControl, PassEnd};
use super::{Setup, codec, now_unix_s};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::protocol::{IncrementalSave, SaveOptions};
use pagefold_control::report::saved::{SaveMoment, SaveReport, SavedFigures};
use pagefold_control::report::writeback::PassProgress;
use pagefold_page::{PageIndex, TokenBucket};
use pagefold_saved::{CodecRecord, Header, PageForm, Parent, ThreadedOutput, Totals, Writer};
use pagefold_store::{Save, SaveError, SaveWatch, SavedContents, Store};
use pagefold_sys::entropy::random_u64;
use pagefold_sys::signal::ignore_file_size_signal;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::time::{Duration, Instant};

/// Why a save has all pages although there is a parent.
const NOT_THE_LAST: &str = "the file is not the last incremental save of the disk since its server was started, or since its last reset";

/// The header of a save of a store with these settings.
pub(super) fn header(store: &Store, setup: &Setup) -> Result<Header> {
    let mut id = [0; 16];
    for half in id.chunks_exact_mut(8) {
        half.copy_from_slice(&random_u64()?.to_le_bytes());
    }
    Ok(Header { codecs: codecs(setup), saved_unix_s: now_unix_s(), ..Header::new(store.len_bytes(), id) })
}

/// The codecs of a disk by priority, as a saved disk names them.
pub(super) fn codecs(setup: &Setup) -> Vec<CodecRecord> {
    let mut codecs: Vec<_> = setup
        .codecs()
        .iter()
        .enumerate()
        .map(|(priority, config)| match setup.codec(priority) {
            None if priority > 0 => CodecRecord::default(),
            _ => {
                let primary = setup.primary();
                let config = codec::applicable(if priority == 0 { &primary } else { config });
                CodecRecord {
                    name: config.name,
                    level: config.level,
                    window_bits: config.window_bits,
                    dictionary: config.dictionary.filter(|dictionary| !dictionary.is_empty()),
                }
            }
        })
        .collect();
    while codecs.last().is_some_and(|codec| codec.name.is_empty()) {
        codecs.pop();
    }
    codecs
}

/// Saves the contents of a store at this moment to `target`, and notes progress in `control`. With `incremental`, saves
/// only what has changed since the save in it, if that was the last one, and notes what changes from now on. Returns the
/// header of the file.
pub(super) fn save(
    store: &Store,
    mut header: Header,
    options: &SaveOptions,
    target: File,
    control: &PassControl,
) -> Result<(Header, Totals)> {
    // A write beyond the limit of a file's length becomes an error.
    ignore_file_size_signal();
    let parent = options.incremental.as_ref().and_then(|incremental| incremental.parent.as_ref());
    let save = match options.incremental {
        Some(_) => store.begin_tracked_save(parent.map(|parent| parent.digest)),
        None => store.begin_save(),
    };
    let mut save = save.map_err(failed)?;
    header.parent = parent.filter(|_| save.is_incremental()).map(|parent| Parent {
        id: parent.id,
        digest: parent.digest,
        depth: parent.depth.saturating_add(1),
        name: parent.name.clone().into(),
    });
    let watch = save.watch();
    control.note_save(&watch);
    control.note_moment(save.progress().1);
    let target = SaveTarget { file: target, end: control.end(), watch };
    let output = ThreadedOutput::start(target).map_err(failed_write)?;
    let mut writer = Writer::new(output, &header).map_err(failed_write)?;
    let taken = take_pages(&mut save, &mut writer, control, options.rate_bytes_per_s);
    // Also after an error, and before the output is dropped, which waits for the target: writers need not capture any more.
    save.end_capture();
    taken?;
    let (totals, _) = writer.finish().map_err(failed_write)?;
    save.complete(totals.digest);
    Ok((header, totals))
}

/// Writes all pages of a save. At a rate, it pauses between them, and goes on with those that writers change.
fn take_pages(
    save: &mut Save<'_>,
    writer: &mut Writer<ThreadedOutput>,
    control: &PassControl,
    rate_bytes_per_s: u64,
) -> Result<()> {
    let (mut pace, began) = (Pace::new(rate_bytes_per_s), Instant::now());
    let mut is_more = true;
    while is_more {
        let add = &mut |index: PageIndex, contents: SavedContents<'_>| writer.add(index.0, form(contents));
        is_more = save.step(add).map_err(failed)?;
        note(save, writer, control)?;
        while is_more && let Some(pause) = pace.pause(began.elapsed(), writer.totals().len_bytes) {
            std::thread::sleep(pause);
            let add =
                &mut |index: PageIndex, contents: SavedContents<'_>| writer.add(index.0, form(contents));
            save.take_captured(add).map_err(failed)?;
            note(save, writer, control)?;
        }
    }
    Ok(())
}

/// Notes the progress. Fails if the save is to end.
fn note(save: &Save<'_>, writer: &Writer<ThreadedOutput>, control: &PassControl) -> Result<()> {
    let (seen_pages, total_pages) = save.progress();
    let Totals { pages, len_bytes, .. } = writer.totals();
    let progress = PassProgress { seen_pages, total_pages, done_pages: pages, done_bytes: len_bytes };
    if control.note(progress).is_break() {
        return Err(failed_write(ended()));
    }
    Ok(())
}

/// The rate of a save.
struct Pace {
    bucket: TokenBucket,
    rate_bytes_per_s: u64,
    /// Bytes that were counted.
    len_bytes: u64,
}

impl Pace {
    /// The most that is written at once after a time in which little was, as the time that the rate takes for it.
    const BURST: Duration = Duration::from_millis(100);
    /// The longest pause: writers that change pages wait for the save when they have changed many.
    const PAUSE_MAX: Duration = Duration::from_millis(5);

    fn new(rate_bytes_per_s: u64) -> Self {
        let bucket = TokenBucket::new(Duration::ZERO, Self::BURST);
        Pace { bucket, rate_bytes_per_s, len_bytes: 0 }
    }

    /// A pause, if the bytes that were written until `now`, counted from the beginning, are more than the rate allows.
    fn pause(&mut self, now: Duration, len_bytes: u64) -> Option<Duration> {
        self.bucket.take(len_bytes.saturating_sub(self.len_bytes));
        self.len_bytes = len_bytes;
        self.bucket.fill(now, self.rate_bytes_per_s);
        let wait = self.bucket.wait(self.rate_bytes_per_s);
        (!wait.is_zero()).then(|| wait.min(Self::PAUSE_MAX))
    }
}

fn form(contents: SavedContents<'_>) -> PageForm<'_> {
    match contents {
        SavedContents::Compressed { priority, bytes } => PageForm::Compressed { codec: priority, bytes },
        SavedContents::Raw(page) => PageForm::Raw(page),
        SavedContents::SameFilled(word) => PageForm::SameFilled(word),
        SavedContents::Lost => PageForm::Lost,
    }
}

/// The report on a save that has ended.
pub(super) fn report(
    header: &Header,
    totals: &Totals,
    incremental: Option<&IncrementalSave>,
    elapsed: Duration,
) -> SaveReport {
    let has_parent = incremental.is_some_and(|incremental| incremental.parent.is_some());
    let full_because = has_parent && header.parent.is_none();
    SaveReport {
        figures: figures(header, totals),
        full_because: full_because.then(|| NOT_THE_LAST.to_string()),
        elapsed_ns: elapsed.as_nanos() as u64,
        moment: SaveMoment::default(),
    }
}

/// The figures of a saved disk for reports.
pub fn figures(header: &Header, totals: &Totals) -> SavedFigures {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    SavedFigures {
        id: hex(&header.id),
        parent: header.parent.as_ref().map(|parent| hex(&parent.id)),
        digest: hex(&totals.digest),
        size_bytes: header.len_bytes,
        pages: totals.pages,
        same_filled_pages: totals.same_filled_pages,
        raw_pages: totals.raw_pages,
        lost_pages: totals.lost_pages,
        payload_bytes: totals.payload_bytes,
        file_bytes: totals.len_bytes,
    }
}

fn failed(e: SaveError) -> CliError {
    match e {
        SaveError::Target(e) => failed_write(e),
        SaveError::Restoring => {
            CliError::new(Exit::Busy, format!("{e} (EBUSY); try again when it has all pages"))
        }
        SaveError::Busy => CliError::new(Exit::Busy, format!("{e}; try again later")),
        SaveError::SetUp(_) => CliError::new(Exit::Unavailable, e.to_string()),
        SaveError::Page(_) => CliError::failed(format!("{e}; nothing was saved, and the disk is as it was")),
        SaveError::GivenUp => failed_write(ended()),
        SaveError::Stalled => CliError::failed(format!("{e}; choose a faster target")),
    }
}

/// The error for a write to the target that failed.
fn failed_write(e: io::Error) -> CliError {
    let failure = match e.kind() {
        ErrorKind::Interrupted => CliError::failed("interrupted: the disk was not saved"),
        ErrorKind::TimedOut => return failed(SaveError::Stalled),
        ErrorKind::BrokenPipe => CliError::failed("the disk was not saved: the reader has closed its end"),
        _ => CliError::io("writing the saved disk", &e),
    };
    match e.raw_os_error() {
        Some(errno) => failure.with_errno(errno),
        None => failure,
    }
}

fn ended() -> io::Error {
    io::Error::new(ErrorKind::Interrupted, "the save is to end")
}

/// The file or socket that a save is written to.
struct SaveTarget {
    file: File,
    end: PassEnd,
    watch: SaveWatch,
}

impl Write for SaveTarget {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.end.is_requested() {
                return Err(ended());
            }
            if self.watch.is_given_up() {
                return Err(ErrorKind::TimedOut.into());
            }
            match self.file.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                // The timeout of a socket.
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of 128 KiB as fast as the pauses allow.
    #[test]
    fn a_rate_holds_and_pauses_are_short() {
        let mut unlimited = Pace::new(0);
        assert_eq!(unlimited.pause(Duration::ZERO, 1 << 40), None);
        let rate = 10 << 20;
        let (mut pace, mut now, mut written) = (Pace::new(rate), Duration::ZERO, 0);
        while written < 100 << 20 {
            written += 128 << 10;
            while let Some(pause) = pace.pause(now, written) {
                assert!(pause <= Pace::PAUSE_MAX);
                now += pause;
            }
        }
        assert!((Duration::from_secs(10)..Duration::from_secs(11)).contains(&now), "{now:?}");
    }
}
