//! The bound of a log file: a server may log for years, and its folder is in memory.
//!
//! The first [`HEAD_BYTES`] of the file stay. Lines after them are left out, all at once, when the file is about to become
//! longer than [`FILE_BYTES_MAX`]; a line in their place counts them. So the beginning and the newest lines are there.

use std::fs::File;
use std::io::{self, Write};

/// The greatest length of the file, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The bytes at the beginning of the file that stay, up to the end of a line.
const HEAD_BYTES: u64 = 256 << 10;

/// A log file, and what was written to it.
pub struct BoundedFile {
    file: File,
    /// The end of the lines that stay.
    head_bytes: u64,
    /// Lines after them.
    later: u64,
    /// Lines that were left out.
    left_out: u64,
}

impl BoundedFile {
    /// Bounds a file that is open for appending.
    pub fn new(file: File) -> Self {
        BoundedFile { file, head_bytes: 0, later: 0, left_out: 0 }
    }

    /// Appends a line.
    pub fn write(&mut self, line: &str) -> io::Result<()> {
        let added = line.len() as u64;
        if self.head_bytes.saturating_add(added) <= HEAD_BYTES {
            self.file.write_all(line.as_bytes())?;
            self.head_bytes = self.file.metadata()?.len();
            return Ok(());
        }
        if self.file.metadata()?.len().saturating_add(added) > FILE_BYTES_MAX {
            self.file.set_len(self.head_bytes)?;
            self.left_out += std::mem::take(&mut self.later);
            writeln!(self.file, "({} lines were left out here)", self.left_out)?;
        }
        self.file.write_all(line.as_bytes())?;
        self.later += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_keeps_its_beginning_and_its_end_and_counts_the_rest() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let open = std::fs::OpenOptions::new().append(true).open(path.path()).unwrap();
        let mut log = BoundedFile::new(open);
        const COUNT: u64 = 40_000;
        for number in 0..COUNT {
            log.write(&format!("{number:079}\n")).unwrap();
        }
        let text = std::fs::read_to_string(path.path()).unwrap();
        assert!(text.len() as u64 <= FILE_BYTES_MAX, "{}", text.len());
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with("00") && lines[lines.len() - 1].ends_with("39999"));
        let gap = lines.iter().position(|line| line.starts_with('(')).unwrap();
        assert_eq!(lines.len() as u64 - 1 + log.left_out, COUNT);
        assert_eq!(lines[gap], format!("({} lines were left out here)", log.left_out));
        let number = |at: usize| lines[at].parse::<u64>().unwrap();
        assert_eq!(number(gap + 1) - number(gap - 1) - 1, log.left_out);
    }
}
