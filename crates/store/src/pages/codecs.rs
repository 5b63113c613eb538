//! The codecs of a store by priority, each with its streams.
//!
//! The primary codec, priority 0, compresses every page that is written. Up to [`FURTHER_CODECS_MAX`] further codecs
//! only compress pages again (`recompress`). A slot and a record on the backing name the codec of their bytes by its
//! priority, so bytes of several codecs lie side by side. The set never changes: no page can refer to a codec that is
//! gone.

use crate::slot::PRIORITY_MAX;
use pagefold_codec::{Codec, CodecError, CodecSpec, Stream, Streams};

/// The most codecs of a store besides the primary one.
pub const FURTHER_CODECS_MAX: usize = PRIORITY_MAX as usize;
/// The number of priorities; that of the primary codec is 0.
const PRIORITY_COUNT: usize = FURTHER_CODECS_MAX + 1;

/// A codec and one stream of it for each CPU.
pub(crate) struct CodecStreams {
    pub(crate) codec: Codec,
    pub(crate) streams: Streams,
}

impl CodecStreams {
    fn new(spec: &CodecSpec, cpu_count: usize) -> Result<Self, CodecError> {
        let codec = Codec::new(spec)?;
        let streams = Streams::new(&codec, cpu_count)?;
        Ok(CodecStreams { codec, streams })
    }
}

/// The codecs of a store.
pub(crate) struct Codecs {
    pub(crate) primary: CodecStreams,
    /// Those of priority 1 and more, in this order.
    further: [Option<Box<CodecStreams>>; FURTHER_CODECS_MAX],
}

impl Codecs {
    /// Prepares the codecs with `cpu_count` streams each. `further` is in the order of their priorities, from 1 on.
    pub(crate) fn new(
        primary: &CodecSpec,
        further: &[Option<CodecSpec>; FURTHER_CODECS_MAX],
        cpu_count: usize,
    ) -> Result<Self, CodecError> {
        let primary = CodecStreams::new(primary, cpu_count)?;
        let mut codecs = Codecs { primary, further: [const { None }; FURTHER_CODECS_MAX] };
        for (codec, spec) in codecs.further.iter_mut().zip(further) {
            if let Some(spec) = spec {
                *codec = Some(Box::new(CodecStreams::new(spec, cpu_count)?));
            }
        }
        Ok(codecs)
    }

    /// The codec of a priority, if the store has it.
    #[inline]
    pub(crate) fn get(&self, priority: u8) -> Option<&CodecStreams> {
        match priority {
            0 => Some(&self.primary),
            _ => self.further.get(usize::from(priority) - 1)?.as_deref(),
        }
    }

    /// The further codecs with their priorities, in this order.
    pub(crate) fn further(&self) -> impl DoubleEndedIterator<Item = (u8, &CodecStreams)> {
        (1..PRIORITY_COUNT as u8).filter_map(|priority| Some((priority, self.get(priority)?)))
    }

    /// The highest priority of the further codecs, if there is one.
    pub(crate) fn highest_further(&self) -> Option<u8> {
        self.further().next_back().map(|(priority, _)| priority)
    }

    /// The highest priority that has a codec.
    pub(crate) fn highest(&self) -> u8 {
        self.highest_further().unwrap_or(0)
    }

    /// Decompresses with the codec of `priority` and the stream of CPU `cpu`.
    #[inline]
    pub(crate) fn decompress(
        &self,
        cpu: usize,
        priority: u8,
        bytes: &[u8],
        page: &mut [u8],
    ) -> Result<usize, CodecError> {
        match self.get(priority) {
            Some(codec) => codec.streams.get(cpu).stream.decompress(bytes, page),
            None => Err(self.unknown(bytes)),
        }
    }

    /// The error for bytes whose priority names no codec: they come from a corrupt record.
    #[cold]
    fn unknown(&self, bytes: &[u8]) -> CodecError {
        CodecError::Corrupt { codec: self.primary.codec.name(), src_len_bytes: bytes.len() }
    }

    /// Makes a stream of each codec for one thread's own use.
    pub(crate) fn own_streams(&self) -> Result<OwnStreams, CodecError> {
        let mut streams = [const { None }; PRIORITY_COUNT];
        for (priority, stream) in streams.iter_mut().enumerate() {
            if let Some(codec) = self.get(priority as u8) {
                *stream = Some(pagefold_codec::PerCpuStream::new(&codec.codec)?.stream);
            }
        }
        Ok(OwnStreams(streams))
    }
}

/// A stream of each codec, for a thread that cannot wait for the shared ones.
pub(crate) struct OwnStreams([Option<Box<dyn Stream>>; PRIORITY_COUNT]);

impl OwnStreams {
    /// Decompresses with the codec of `priority`. Allocates nothing.
    #[inline]
    pub(crate) fn decompress(
        &mut self,
        priority: u8,
        bytes: &[u8],
        page: &mut [u8],
    ) -> Result<usize, CodecError> {
        match self.0.get_mut(usize::from(priority)) {
            Some(Some(stream)) => stream.decompress(bytes, page),
            _ => Err(CodecError::Corrupt { codec: "unknown", src_len_bytes: bytes.len() }),
        }
    }
}
