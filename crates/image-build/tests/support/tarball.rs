//! Archives made by hand, member by member.

/// An archive under construction.
#[derive(Default, Clone)]
pub struct Tarball(pub Vec<u8>);

impl Tarball {
    /// A header block of the ustar form.
    pub fn header(name: &[u8], letter: u8, size: u64) -> [u8; 512] {
        let mut block = [0; 512];
        block[..name.len()].copy_from_slice(name);
        block[100..108].copy_from_slice(b"0000640\0");
        block[108..116].copy_from_slice(b"0001750\0");
        block[116..124].copy_from_slice(b"0000144\0");
        match format!("{size:011o}\0").as_bytes() {
            text if text.len() == 12 => block[124..136].copy_from_slice(text),
            _ => {
                block[124] = 0x80;
                block[128..136].copy_from_slice(&size.to_be_bytes());
            }
        }
        block[136..148].copy_from_slice(b"14527252200\0");
        block[156] = letter;
        block[257..265].copy_from_slice(b"ustar\x0000");
        block
    }

    /// Adds a header, whose checksum is computed, after a change.
    pub fn raw(mut self, mut block: [u8; 512], change: impl FnOnce(&mut [u8; 512])) -> Self {
        change(&mut block);
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend(block);
        self
    }

    /// Adds bytes, and padding.
    pub fn data(mut self, data: &[u8]) -> Self {
        self.0.extend(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    /// Adds a member without data.
    pub fn member(self, name: &str, letter: u8, link: &str) -> Self {
        self.raw(Self::header(name.as_bytes(), letter, 0), |block| {
            block[157..157 + link.len()].copy_from_slice(link.as_bytes());
        })
    }

    /// Adds a regular file.
    pub fn file(self, name: &str, data: &[u8]) -> Self {
        self.raw(Self::header(name.as_bytes(), b'0', data.len() as u64), |_| {}).data(data)
    }

    /// Adds pax records for the next member, or global ones.
    pub fn pax(self, letter: u8, records: &[(&str, &[u8])]) -> Self {
        let mut bytes = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let len = (rest..).find(|len| len.to_string().len() + rest == *len).unwrap();
            bytes.extend(format!("{len} {key}=").as_bytes());
            bytes.extend(*value);
            bytes.push(b'\n');
        }
        self.raw(Self::header(b"pax", letter, bytes.len() as u64), |_| {}).data(&bytes)
    }

    /// Adds a long name (`L`) or link (`K`) of GNU's form.
    pub fn long(self, letter: u8, name: &[u8]) -> Self {
        let name = [name, b"\0"].concat();
        self.raw(Self::header(b"././@LongLink", letter, name.len() as u64), |_| {}).data(&name)
    }

    /// Ends the archive.
    pub fn end(mut self) -> Vec<u8> {
        self.0.extend([0; 1024]);
        self.0
    }
}
