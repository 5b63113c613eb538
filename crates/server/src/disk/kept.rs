//! [`DiskRecord`]: the state of a disk that is not in its memory, for the next server.
//!
//! Dictionaries are not in the JSON but in a file in memory, one after the other, so that keepers stay small. The descriptors
//! are, in this order: the memory of the pages, that file if there is one, the backing if there is one, and the files of a
//! restore in progress.

use super::saved_source::SavedFile;
use super::{Disk, PRIORITY_COUNT, Reopen, RunningDisk, Setup, medium};
use crate::keeper::malformed;
use pagefold_control::config::{BackingConfig, CodecConfig, RecompressAfter};
use pagefold_control::error::{CliError, Result};
use pagefold_control::instance::state::CreatedFile;
use pagefold_store::writeback::{LayoutKind, Settings};
use pagefold_sys::sharedmem::SharedMemory;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// The state of a disk, without descriptors.
#[derive(Debug, Serialize, Deserialize)]
pub struct DiskRecord {
    created_unix_s: u64,
    /// 0 without a size.
    size_bytes: u64,
    /// Whether the system never swaps the memory out.
    is_unswappable: bool,
    /// The codecs by priority, without dictionaries; one that is not chosen has no name.
    codecs: [CodecConfig; PRIORITY_COUNT],
    /// The lengths of their dictionaries; absent: none.
    dictionary_bytes: [Option<u64>; PRIORITY_COUNT],
    recompress_after: Vec<RecompressAfter>,
    mem_limit_bytes: Option<u64>,
    same_filled: bool,
    compressed_writeback: bool,
    backing: Option<MediumRecord>,
    /// The files of a restore in progress, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    restore: Vec<SavedFileRecord>,
    writeback: WritebackRecord,
    /// The settings that the disk has only with a size, and those of automatic writeback only with a backing.
    applied: Applied,
}

/// A [`Medium`](super::Medium) without its file.
#[derive(Debug, Serialize, Deserialize)]
struct MediumRecord {
    #[serde(with = "pagefold_control::path")]
    path: PathBuf,
    created: Option<CreatedFile>,
    rate_bytes_per_s: u64,
    daily_bytes: u64,
    delay_us: u64,
}

/// A [`SavedFile`] without its descriptor.
#[derive(Debug, Serialize, Deserialize)]
struct SavedFileRecord {
    #[serde(with = "pagefold_control::path")]
    path: PathBuf,
    id: [u8; 16],
    digest: [u8; 32],
}

/// The settings of writeback that a disk has without a size too.
#[derive(Debug, Serialize, Deserialize)]
struct WritebackRecord {
    promote: bool,
    promote_window_s: u32,
    limit_pages: u64,
    is_limited: bool,
    batch_pages: u32,
}

/// The settings that only a store has.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Applied {
    recompress_busy_percent: Option<u32>,
    high_percent: Option<u32>,
    low_percent: Option<u32>,
    age_s: Option<u64>,
    busy_percent: Option<u32>,
}

/// The state of a disk of a former server.
pub struct KeptDisk {
    /// When it was created, seconds since 1970.
    pub created_unix_s: u64,
    /// 0 without a size.
    pub size_bytes: u64,
    /// Its settings.
    pub setup: Setup,
    /// The memory of its pages.
    pub memory: SharedMemory,
    /// The settings that its store has besides.
    pub applied: Applied,
    /// The files of a restore in progress, the newest first.
    pub restore: Vec<SavedFile>,
}

impl DiskRecord {
    /// The state of `disk`, which has or gets the parts `live`, and its descriptors. Fails if it does not outlive its server.
    pub fn of(disk: &Disk, live: Option<&RunningDisk>) -> Result<(Self, Vec<OwnedFd>)> {
        let memory = disk.memory().ok_or_else(|| CliError::failed("the disk has no memory to share"))?;
        let setup = disk.setup();
        let writeback = live.and_then(|live| live.store.writeback());
        let medium = setup.medium.as_ref();
        let backing = medium.map(|medium| MediumRecord {
            path: medium.path.clone(),
            created: medium.created,
            rate_bytes_per_s: writeback
                .map_or(medium.rate_bytes_per_s, |writeback| writeback.policy().rate_bytes_per_s.load()),
            daily_bytes: writeback
                .map_or(medium.daily_bytes, |writeback| writeback.policy().daily_bytes.load()),
            delay_us: medium.delay_us,
        });
        let source = live.and_then(RunningDisk::restoring).and_then(|restoring| restoring.source());
        let files = source.as_ref().map_or(&[][..], |source| source.files());
        let dictionaries = setup.codecs().each_ref().map(|codec| codec.dictionary.as_deref());
        let record = DiskRecord {
            created_unix_s: disk.created_unix_s(),
            size_bytes: live.map_or(0, |live| live.store.len_bytes()),
            is_unswappable: memory.is_unswappable(),
            codecs: setup.codecs().each_ref().map(without_dictionary),
            dictionary_bytes: dictionaries.map(|dictionary| dictionary.map(|bytes| bytes.len() as u64)),
            recompress_after: setup.recompress_after.clone(),
            mem_limit_bytes: setup.mem_limit_bytes,
            same_filled: setup.same_filled,
            compressed_writeback: setup.layout == LayoutKind::Log,
            backing,
            restore: files.iter().map(SavedFileRecord::of).collect(),
            writeback: WritebackRecord::of(writeback.map_or(&setup.writeback, |w| w.settings())),
            applied: live.map(Applied::of).unwrap_or_default(),
        };
        let mut fds = vec![OwnedFd::from(file_of(memory)?)];
        if dictionaries.iter().any(Option::is_some) {
            fds.push(file_with(&dictionaries.iter().flatten().copied().collect::<Vec<_>>().concat())?.into());
        }
        if let Some(medium) = medium {
            fds.push(medium.file.try_clone().map_err(|e| duplicating(&e))?.into());
        }
        for saved in files {
            fds.push(saved.file.try_clone().map_err(|e| duplicating(&e))?.into());
        }
        Ok((record, fds))
    }

    /// Whether a restore is in progress.
    pub fn has_restore(&self) -> bool {
        !self.restore.is_empty()
    }

    /// The state, with the descriptors that [`DiskRecord::of`] has returned; takes these from `fds`. Touches no page.
    pub fn with_fds(self, fds: &mut impl Iterator<Item = OwnedFd>, reopen: Reopen<'_>) -> Result<KeptDisk> {
        let mut next = |what: &str| fds.next().ok_or_else(|| malformed(&format!("the {what} is missing")));
        let memory = SharedMemory::from_fd(next("memory of the pages")?, self.is_unswappable);
        let mut codecs = self.codecs;
        if self.dictionary_bytes.iter().any(Option::is_some) {
            let file = File::from(next("file of dictionaries")?);
            read_dictionaries(&file, &self.dictionary_bytes, &mut codecs)?;
        }
        let layout = if self.compressed_writeback { LayoutKind::Log } else { LayoutKind::Blocks };
        let medium = match self.backing {
            Some(backing) => {
                let config = backing.config(self.compressed_writeback);
                medium(Some(&config), Some(next("backing")?.into()), reopen)?
            }
            None => None,
        };
        let mut restore = Vec::new();
        for SavedFileRecord { path, id, digest } in self.restore {
            restore.push(SavedFile { path, file: next("saved disk")?.into(), id, digest });
        }
        let mut setup = Setup::default().with_codecs(codecs);
        setup.recompress_after = self.recompress_after;
        setup.mem_limit_bytes = self.mem_limit_bytes;
        setup.same_filled = self.same_filled;
        (setup.medium, setup.layout) = (medium, layout);
        setup.writeback = Arc::new(self.writeback.settings());
        Ok(KeptDisk {
            created_unix_s: self.created_unix_s,
            size_bytes: self.size_bytes,
            setup,
            memory,
            applied: self.applied,
            restore,
        })
    }
}

impl MediumRecord {
    fn config(self, compressed: bool) -> BackingConfig {
        let MediumRecord { path, created, rate_bytes_per_s, daily_bytes, delay_us } = self;
        BackingConfig { path, created, compressed, rate_bytes_per_s, daily_bytes, delay_us }
    }
}

impl SavedFileRecord {
    fn of(saved: &SavedFile) -> Self {
        SavedFileRecord { path: saved.path.clone(), id: saved.id, digest: saved.digest }
    }
}

impl WritebackRecord {
    fn of(settings: &Settings) -> Self {
        WritebackRecord {
            promote: settings.promote.load(),
            promote_window_s: settings.promote_window_s.load(),
            limit_pages: settings.writeback_limit.load(),
            is_limited: settings.writeback_limit_enabled.load(),
            batch_pages: settings.writeback_batch_size(),
        }
    }

    fn settings(&self) -> Settings {
        let settings = Settings::default();
        settings.promote.store(self.promote);
        settings.promote_window_s.store(self.promote_window_s);
        settings.writeback_limit.store(self.limit_pages);
        settings.writeback_limit_enabled.store(self.is_limited);
        settings.set_writeback_batch_size(self.batch_pages);
        settings
    }
}

impl Applied {
    fn of(live: &RunningDisk) -> Self {
        let policy = live.store.writeback().map(|writeback| writeback.policy());
        let marks = policy.map(|policy| policy.marks_percent());
        Applied {
            recompress_busy_percent: Some(live.store.recompress_busy_percent()),
            high_percent: marks.map(|(high, _)| high),
            low_percent: marks.map(|(_, low)| low),
            age_s: policy.map(|policy| policy.age_s.load()),
            busy_percent: policy.map(|policy| policy.busy_percent.load()),
        }
    }

    /// Sets them.
    pub fn apply(&self, live: &RunningDisk) {
        if let Some(percent) = self.recompress_busy_percent {
            live.store.set_recompress_busy_percent(percent);
        }
        let Some(writeback) = live.store.writeback() else { return };
        if let (Some(high), Some(low)) = (self.high_percent, self.low_percent) {
            writeback.policy().set_marks_percent(high, low);
        }
        self.age_s.iter().for_each(|age_s| writeback.policy().age_s.store(*age_s));
        self.busy_percent.iter().for_each(|percent| writeback.policy().busy_percent.store(*percent));
    }
}

fn without_dictionary(codec: &CodecConfig) -> CodecConfig {
    let CodecConfig { name, level, window_bits, .. } = codec;
    CodecConfig { name: name.clone(), level: *level, dictionary: None, window_bits: *window_bits }
}

fn read_dictionaries(
    file: &File,
    lengths: &[Option<u64>; PRIORITY_COUNT],
    codecs: &mut [CodecConfig; PRIORITY_COUNT],
) -> Result<()> {
    let failed = |e: &std::io::Error| malformed(&format!("reading the dictionaries: {e}"));
    let available = file.metadata().map_err(|e| failed(&e))?.len();
    let mut at = 0u64;
    for (codec, len) in codecs.iter_mut().zip(lengths) {
        let Some(len) = *len else { continue };
        if len > available.saturating_sub(at) {
            return Err(malformed("the file of dictionaries is too short"));
        }
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(&mut bytes, at).map_err(|e| failed(&e))?;
        at += len;
        codec.dictionary = Some(bytes);
    }
    Ok(())
}

/// A file in memory with these bytes.
fn file_with(bytes: &[u8]) -> Result<File> {
    let file = file_of(&SharedMemory::new()?)?;
    file.write_all_at(bytes, 0)
        .map_err(|e| CliError::io("writing the dictionaries for the next server", &e))?;
    Ok(file)
}

fn file_of(memory: &SharedMemory) -> Result<File> {
    memory.as_fd().try_clone_to_owned().map(File::from).map_err(|e| duplicating(&e))
}

fn duplicating(e: &std::io::Error) -> CliError {
    CliError::io("duplicating a descriptor", e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagefold_control::config::DiskConfig;
    use pagefold_control::export_kind::ExportKind;
    use pagefold_control::instance::InstanceName;

    #[test]
    fn a_state_is_unpacked_as_it_was_and_a_malformed_one_is_refused() {
        let codec = |name: &str, dictionary: Option<&[u8]>| CodecConfig {
            name: name.into(),
            level: Some(3),
            dictionary: dictionary.map(<[u8]>::to_vec),
            window_bits: None,
        };
        let config = DiskConfig {
            codec: codec("zstd", Some(b"first words")),
            further_codecs: vec![codec("lz4hc", None), codec("zstd", Some(b"other words"))],
            recompress_after: vec![RecompressAfter { age_s: 60, priority: 2 }],
            mem_limit_bytes: Some(5 << 20),
            ..DiskConfig::new(1 << 20, "", ExportKind::Nbd)
        };
        let name = InstanceName::parse("x").unwrap();
        let disk = Disk::new(name, &config, None, Some(SharedMemory::new().unwrap())).unwrap();
        disk.store().unwrap().set_recompress_busy_percent(77);
        disk.setup().writeback.writeback_limit.store(12);
        let (record, fds) = DiskRecord::of(&disk, disk.running().as_deref()).unwrap();
        let text = serde_json::to_string(&record).unwrap();
        assert!(fds.len() == 2 && !text.contains("words"));
        let copies = || fds.iter().map(|fd| fd.try_clone().unwrap()).collect::<Vec<_>>();
        let unpack = |text: &str, fds: Vec<OwnedFd>| {
            serde_json::from_str::<DiskRecord>(text).unwrap().with_fds(&mut fds.into_iter(), &|_| None)
        };
        let kept = unpack(&text, copies()).unwrap();
        assert_eq!((kept.size_bytes, kept.created_unix_s), (1 << 20, disk.created_unix_s()));
        assert_eq!(kept.setup.codecs(), disk.setup().codecs());
        assert_eq!(kept.setup.recompress_after, config.recompress_after);
        assert_eq!((kept.setup.mem_limit_bytes, kept.setup.same_filled), (Some(5 << 20), true));
        assert_eq!(kept.setup.writeback.writeback_limit.load(), 12);
        assert_eq!(kept.applied.recompress_busy_percent, Some(77));
        for count in 0..fds.len() {
            assert!(unpack(&text, copies().into_iter().take(count).collect()).is_err());
        }
        let longer = text.replace("[11,null,11,null]", "[11,null,12,null]");
        assert!(longer != text && unpack(&longer, copies()).is_err());
    }
}
