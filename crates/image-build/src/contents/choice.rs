//! The compression of each file: that of its rule or of the options, or what a sample shows to be worth it.
//!
//! The choice depends on the contents alone, and never on time, so that the image does not depend on the machine. The
//! chunk scan asks before files are written, so choices by sample are kept.

use super::sample::{Gain, SAMPLED_BYTES_MIN, Sampler};
use crate::Result;
use crate::compression::Compression;
use crate::content::Content;
use crate::options::Options;
use crate::plan::Planned;
use crate::table::{Spill, Table};
use crate::writer::Writer;

/// Chooses compressions.
pub struct Chooser {
    /// `None`: the options ask for no samples.
    sampler: Option<Sampler>,
    /// For each inode what its sample has shown, or [`UNKNOWN`].
    gains: Table<u8>,
}

/// No sample was compressed so far. Other values are those of [`Gain`], plus 1.
const UNKNOWN: u8 = 0;

impl Chooser {
    /// Makes the sampler, if the options ask for samples.
    pub fn new(options: &Options, spill: &Spill) -> Result<Self> {
        let sampler = options.choose_by_sample.then(Sampler::new).transpose()?;
        Ok(Chooser { sampler, gains: Table::new(spill) })
    }

    /// The compression of a regular file; `None`: it is stored plain.
    pub fn choose(
        &mut self,
        writer: &Writer<'_>,
        planned: &Planned,
        content: &dyn Content,
    ) -> Result<Option<Compression>> {
        let options = writer.options;
        if let Some(by_rule) = planned.rule(writer.tree, &options.rules) {
            return Ok(by_rule);
        }
        let sampled_bytes_min = SAMPLED_BYTES_MIN.max(u64::from(options.cluster_bytes) + 1);
        let (Some(compression), Some(sampler)) = (options.compression, &mut self.sampler) else {
            return Ok(options.compression);
        };
        if content.len_bytes() < sampled_bytes_min {
            return Ok(options.compression);
        }
        let index = planned.id.index();
        let known = self.gains.get_or(index, UNKNOWN);
        let known = Gain::ALL.into_iter().find(|gain| *gain as u8 + 1 == known);
        let gain = match known {
            Some(gain) => gain,
            None => sampler.gain(content, compression)?,
        };
        self.gains.put(index, gain as u8 + 1, UNKNOWN)?;
        Ok(match gain {
            Gain::Nothing => None,
            Gain::EntropyOnly => Some(compression.light()),
            Gain::Matches => Some(compression),
        })
    }
}
