//! Invariant: whatever a small image claims, each request of a mount (lookup, attributes, readdir with and without
//! attributes, read, links, extended attributes, statfs) is answered within a budget of CPU time and of reads. The positions
//! of a listing go on, so that a program that lists a directory ends if the directory does.
//!
//! The input chooses the fields of an image by rules (see `hostile`), and then requests, for inodes that earlier replies
//! named or that are made up.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_fuse::FileSystem;
use pagefold_fuse::abi::{InHeader, opcode};
use pagefold_fuse::fuzzing::{Exchange, RingRequests};
use pagefold_fuzz::hostile::{self, Choices, ERRORS, REQUEST, within};
use pagefold_fuzz::image::check_budget;
use pagefold_fuzz::{native_u32, native_u64};

/// Longest read and listing, bytes.
const READ_BYTES: usize = 128 << 10;
const PAYLOAD: usize = READ_BYTES + (64 << 10);
const REQUESTS_MAX: usize = 64;
/// Bytes of a reply's header.
const OUT_HEADER: usize = 16;

/// The structure of a read or a listing.
fn range(offset: u64, size: u32) -> Vec<u8> {
    [&0u64.to_ne_bytes()[..], &offset.to_ne_bytes(), &size.to_ne_bytes(), &[0; 20]].concat()
}

struct Client<F> {
    requests: RingRequests<F>,
    payload: Vec<u8>,
    inodes: Vec<u64>,
}

impl<F: FileSystem> Client<F> {
    /// Makes a request, and returns its error or the length of its reply.
    fn ask(&mut self, number: u32, inode: u64, structure: &[u8], name: &[u8]) -> Result<usize, i32> {
        let request = [40u32, number, 2, 0, inode as u32, (inode >> 32) as u32, 0, 0, 0, 0]
            .map(u32::to_ne_bytes)
            .concat();
        assert_eq!(request.len(), size_of::<InHeader>());
        let mut header = [request, vec![0; 88]].concat();
        let mut arguments = [0; 128];
        arguments[..structure.len()].copy_from_slice(structure);
        self.payload[..name.len()].copy_from_slice(name);
        let exchange = Exchange {
            header: &mut header,
            structure: &arguments,
            payload: &mut self.payload,
            payload_bytes: name.len(),
        };
        let len = within(REQUEST, "a request", || self.requests.answer(exchange));
        let error = native_u32(&header, 4) as i32;
        assert!(len + OUT_HEADER <= PAYLOAD + OUT_HEADER && (error == 0 || len == 0));
        if error == 0 {
            return Ok(len);
        }
        ERRORS.set(ERRORS.get() + 1);
        Err(error)
    }

    /// Lists a directory from a position on, as far as one reply goes. Returns the position behind it.
    fn list(&mut self, inode: u64, offset: u64, size: u32, plus: bool) -> Option<u64> {
        let (number, attributes) = if plus { (opcode::READDIRPLUS, 128) } else { (opcode::READDIR, 0) };
        let len = self.ask(number, inode, &range(offset, size), b"").ok()?;
        assert!(len <= size as usize);
        let (mut at, mut last) = (0, None);
        while at < len {
            let dirent = &self.payload[at + attributes..];
            let word = |at: usize| native_u64(dirent, at);
            let name_len = (word(16) & 0xffff_ffff) as usize;
            assert!(
                (1..=255).contains(&name_len) && last.is_none_or(|last| word(8) > last) && word(8) > offset
            );
            last = Some(word(8));
            if self.inodes.len() < 64 {
                self.inodes.push(word(0));
            }
            at += (attributes + 24 + name_len).next_multiple_of(8);
        }
        last
    }

    fn one(&mut self, choices: &mut Choices<'_>) {
        const NAMES: [&[u8]; 7] = [b"aaa\0", b"aab\0", b"x\0", b"user.\0", b".\0", b"..\0", b"zzzz\0"];
        const OFFSETS: [u64; 8] = [0, 1, 4096, 1 << 20, 1 << 40, 1 << 61, i64::MAX as u64, u64::MAX];
        let inode = match choices.byte() {
            n @ 0..192 => self.inodes[usize::from(n) % self.inodes.len()],
            n => u64::from(n) << (choices.byte() & 63),
        };
        let sized = [READ_BYTES as u32, 0].map(u32::to_ne_bytes).concat();
        let _ = match choices.byte() % 10 {
            0 => self.ask(opcode::LOOKUP, inode, &[], choices.of(&NAMES)),
            1 => self.ask(opcode::GETATTR, inode, &[0; 16], b""),
            2 => self.ask(opcode::READ, inode, &range(choices.of(&OFFSETS), READ_BYTES as u32), b""),
            3 => self.ask(opcode::GETXATTR, inode, &sized, choices.of(&NAMES)),
            4 => self.ask(opcode::LISTXATTR, inode, &sized, b""),
            5 => self.ask(opcode::STATFS, inode, &[], b""),
            6 => self.ask(opcode::READLINK, inode, &[], b""),
            number => {
                let (mut offset, plus) = (choices.of(&OFFSETS), number == 7);
                let size = choices.of(&[4096, READ_BYTES as u32, 1024]);
                for _ in 0..4 {
                    let Some(next) = self.list(inode, offset, size, plus) else { break };
                    offset = next;
                }
                Ok(0)
            }
        };
    }
}

fuzz_target!(|input: &[u8]| {
    let mut choices = Choices::new(input);
    let bytes = hostile::image(&mut choices);
    let Some(image) = hostile::counted(hostile::open(bytes)) else { return };
    let file_system =
        pagefold_image::mount::file_system(image.clone(), READ_BYTES).expect("a pair of sockets");
    let Ok(requests) = RingRequests::new(file_system) else { panic!("the kernel has all features") };
    let mut client = Client { requests, payload: vec![0; PAYLOAD], inodes: vec![1] };
    for _ in 0..REQUESTS_MAX {
        client.one(&mut choices);
        if choices.is_empty() {
            break;
        }
    }
    check_budget(&image);
});
