//! Debian's lzop reads this crate's blocks, and this crate reads lzop's.
//!
//! The tests write and read the `.lzo` container themselves; it is no part of the codec. Where lzop is not installed
//! the tests are skipped with a message.

use pagefold_codec::lzo::{Variant, Workspace, compress, compress_bound, decompress};
use std::io::Write;
use std::process::{Command, Stdio};

const MAGIC: [u8; 9] = [0x89, b'L', b'Z', b'O', 0, 0x0d, 0x0a, 0x1a, 0x0a];
/// Adler-32 of the uncompressed block follows its lengths.
const F_ADLER32_D: u32 = 1;
/// Adler-32 of the compressed block follows too, unless the block is stored.
const F_ADLER32_C: u32 = 2;
/// The block size that lzop uses.
const BLOCK: usize = 256 << 10;

fn adler32(bytes: &[u8]) -> u32 {
    let (a, b) = bytes.iter().fold((1u32, 0u32), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65521;
        (a, (b + a) % 65521)
    });
    b << 16 | a
}

/// Runs lzop with `input` on its standard input and returns its output; skips the test and returns `None` when lzop
/// cannot be run.
fn lzop(test: &str, args: &[&str], input: &[u8]) -> Option<Vec<u8>> {
    let spawned = Command::new("lzop")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => {
            pagefold_testkit::skipped!("{test}: cannot run lzop: {error}");
            return None;
        }
    };
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        // If lzop refuses the input, its exit status says so; a broken pipe here is ignored.
        scope.spawn(move || stdin.write_all(input).ok());
        child.wait_with_output().unwrap()
    });
    assert!(output.status.success(), "lzop {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some(output.stdout)
}

/// Makes data of all kinds: text-like, zeros, noise, repeats near and far.
fn sample(len: usize) -> Vec<u8> {
    let mut x = 1u32;
    let mut noise = std::iter::repeat_with(move || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        x >> 8
    });
    let mut data = Vec::new();
    while data.len() < len {
        let (kind, size) = (noise.next().unwrap() % 6, noise.next().unwrap() as usize % 300);
        match kind {
            0 => data.extend(noise.by_ref().take(size).map(|n| n as u8)),
            1 => data.resize(data.len() + size, 0),
            2 => data.extend(noise.by_ref().take(size).map(|n| b"etaoin shrdlu\n"[n as usize % 14])),
            _ if !data.is_empty() => {
                let from = noise.next().unwrap() as usize % data.len();
                (0..size / 4).for_each(|at| data.push(data[from + at]));
            }
            _ => data.push(7),
        }
    }
    data.truncate(len);
    data
}

/// Makes the header of a `.lzo` file of method LZO1X-1, with checksums and without a name.
fn header() -> Vec<u8> {
    let mut fields = Vec::new();
    fields.extend(0x1030u16.to_be_bytes()); // version of lzop that wrote it
    fields.extend(0x2080u16.to_be_bytes()); // version of its library
    fields.extend(0x0940u16.to_be_bytes()); // version needed to read it
    fields.extend([1, 5]); // method LZO1X-1, level
    fields.extend((F_ADLER32_D | F_ADLER32_C).to_be_bytes()); // flags
    fields.extend(0o100_644u32.to_be_bytes()); // mode
    fields.extend([0; 8]); // time of modification, low and high word
    fields.push(0); // length of the name
    let sum = adler32(&fields);
    [&MAGIC[..], &fields, &sum.to_be_bytes()].concat()
}

/// Makes a `.lzo` file of `data`, in blocks of `block_len` that this crate compresses.
fn contained(data: &[u8], block_len: usize) -> Vec<u8> {
    let mut file = header();
    let mut work = Workspace::new();
    for block in data.chunks(block_len) {
        let mut out = vec![0; compress_bound(block.len())];
        let len = compress(Variant::Lzo, &mut work, block, &mut out).unwrap();
        // As lzop does, store a block that does not shrink; equal lengths mark it.
        let stored = len >= block.len();
        let body = if stored { block } else { &out[..len] };
        file.extend((block.len() as u32).to_be_bytes());
        file.extend((body.len() as u32).to_be_bytes());
        file.extend(adler32(block).to_be_bytes());
        if !stored {
            file.extend(adler32(body).to_be_bytes());
        }
        file.extend(body);
    }
    file.extend([0; 4]);
    file
}

/// Reads big-endian fields off the front of a slice.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken
    }

    fn be32(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().unwrap())
    }
}

/// Decompresses the `.lzo` file `file` with this crate; returns the data and the number of blocks that were not stored.
fn extracted(file: &[u8]) -> (Vec<u8>, usize) {
    let mut fields = Fields(file);
    assert_eq!(fields.take(9), MAGIC);
    fields.take(2 + 2 + 2 + 1 + 1);
    let flags = fields.be32();
    assert_eq!(
        flags & 0x0c00 & !(F_ADLER32_D | F_ADLER32_C),
        0,
        "this reader does not support multipart files and filters: {flags:x}"
    );
    fields.take(4 + 8);
    let name_len = usize::from(fields.take(1)[0]);
    fields.take(name_len + 4);
    let (mut data, mut compressed_blocks) = (Vec::new(), 0);
    loop {
        let len = fields.be32() as usize;
        if len == 0 {
            return (data, compressed_blocks);
        }
        let body_len = fields.be32() as usize;
        let sum = (flags & F_ADLER32_D != 0).then(|| fields.be32());
        if flags & F_ADLER32_C != 0 && body_len < len {
            fields.be32();
        }
        let body = fields.take(body_len);
        let mut block = vec![0; len];
        if body_len < len {
            assert_eq!(decompress(body, &mut block), Ok(len));
            compressed_blocks += 1;
        } else {
            block.copy_from_slice(body);
        }
        assert_eq!(sum.unwrap_or(adler32(&block)), adler32(&block));
        data.extend(block);
    }
}

#[test]
fn lzop_reads_this_crates_blocks() {
    let data = sample(1 << 20);
    for block_len in [100, 4096, 65_536, BLOCK] {
        let data = &data[..data.len().min(block_len * 400)];
        let Some(read) = lzop("lzop_reads_this_crates_blocks", &["-dc"], &contained(data, block_len)) else {
            return;
        };
        assert!(read == data, "blocks of {block_len}");
    }
}

#[test]
fn this_crate_reads_lzops_blocks() {
    let data = sample(3 << 20);
    for level in ["-1", "-3", "-9"] {
        let Some(file) = lzop("this_crate_reads_lzops_blocks", &[level, "-c"], &data) else { return };
        let (read, compressed_blocks) = extracted(&file);
        assert!(read == data, "level {level}");
        assert!(compressed_blocks > 0);
    }
}

/// Checks the container code without lzop.
#[test]
fn the_container_round_trips() {
    let data = sample(100_000);
    assert_eq!(adler32(b"Wikipedia"), 0x11e6_0398);
    assert!(extracted(&contained(&data, 4096)).0 == data);
}
