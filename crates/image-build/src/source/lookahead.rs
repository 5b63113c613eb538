//! A buffered input whose next bytes can be looked at, however the reads of the input are cut.

use std::io::{self, BufRead, Read};

/// Reads an input through a buffer.
pub struct Lookahead<R> {
    input: R,
    buffer: Box<[u8]>,
    /// The bytes in the buffer that were not read yet.
    start: usize,
    end: usize,
    /// Bytes that were read from the input.
    taken_bytes: u64,
}

impl<R: Read> Lookahead<R> {
    /// Reads an input in pieces of `buffer_bytes`.
    pub fn new(input: R, buffer_bytes: usize) -> Self {
        Lookahead { input, buffer: vec![0; buffer_bytes].into(), start: 0, end: 0, taken_bytes: 0 }
    }

    /// The position in the input, bytes from its beginning.
    pub fn position(&self) -> u64 {
        self.taken_bytes - (self.end - self.start) as u64
    }

    /// The next `len` bytes, which fit into the buffer; fewer at the end of the input. They are read again later.
    pub fn peek(&mut self, len: usize) -> io::Result<&[u8]> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        while self.end < len.min(self.buffer.len()) && self.fill()? > 0 {}
        Ok(&self.buffer[..len.min(self.end)])
    }

    /// Reads more bytes to the end of those in the buffer. Returns their number: 0 at the end of the input.
    fn fill(&mut self) -> io::Result<usize> {
        loop {
            match self.input.read(&mut self.buffer[self.end..]) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                read => {
                    let len = read?;
                    self.end += len;
                    self.taken_bytes += len as u64;
                    return Ok(len);
                }
            }
        }
    }
}

impl<R: Read> BufRead for Lookahead<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            self.fill()?;
        }
        Ok(&self.buffer[self.start..self.end])
    }

    fn consume(&mut self, len: usize) {
        self.start = self.end.min(self.start + len);
    }
}

impl<R: Read> Read for Lookahead<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let bytes = self.fill_buf()?;
        let len = bytes.len().min(buf.len());
        buf[..len].copy_from_slice(&bytes[..len]);
        self.consume(len);
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An input that returns one byte at a time.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let len = buf.len().min(1);
            self.0.read(&mut buf[..len])
        }
    }

    #[test]
    fn bytes_that_were_looked_at_are_read_again() {
        let text: Vec<u8> = (0..200).collect();
        let (mut input, mut read) = (Lookahead::new(Slow(&text), 7), Vec::new());
        for step in (1..6).cycle() {
            let wanted = &text[read.len()..text.len().min(read.len() + step)];
            assert_eq!(input.peek(step).unwrap(), wanted);
            assert_eq!(input.position(), read.len() as u64);
            let mut bytes = vec![0; step];
            match input.read(&mut bytes).unwrap() {
                0 => break,
                len => read.extend(&bytes[..len]),
            }
        }
        assert_eq!((read, input.position()), (text, 200));
    }
}
