//! Random trees, and a plain twin of all that carries one: [`Files`] says what a tree is, [`write`] makes it with one system call
//! after another, and [`read`] looks at each file of a directory or a mount.
//!
//! A tree depends on its seed alone, and on the rights of the caller: only root may set owners and make devices.

pub use pagefold_testkit::Random;
use rustix::fs::{CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

/// All names of a tree, by their paths without a slash at the beginning; that of the root is empty.
pub type Files = BTreeMap<Vec<u8>, File>;

/// A file, under one of its names.
#[derive(Clone, PartialEq, Eq)]
pub struct File {
    /// The type, and permissions.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Seconds since 1970, and nanoseconds.
    pub mtime: (i64, u32),
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Contents of a file, target of a link.
    pub data: Vec<u8>,
    /// Major and minor number.
    pub device: (u32, u32),
    /// The first of its names.
    pub first: Vec<u8>,
}

pub const DIRECTORY: u32 = libc::S_IFDIR;
pub const REGULAR: u32 = libc::S_IFREG;
pub const SYMLINK: u32 = libc::S_IFLNK;
pub const SOCKET: u32 = libc::S_IFSOCK;
const CHAR: u32 = libc::S_IFCHR;
const BLOCK: u32 = libc::S_IFBLK;
const FIFO: u32 = libc::S_IFIFO;

impl File {
    pub fn kind(&self) -> u32 {
        self.mode & libc::S_IFMT
    }
}

/// Of contents, the beginning.
impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let File { mode, uid, gid, mtime: (seconds, nanoseconds), device, .. } = self;
        write!(f, "mode {mode:o}, owner {uid}:{gid}, time {seconds}.{nanoseconds:09}, device {device:?}, ")?;
        write!(f, "first name \"{}\", ", self.first.escape_ascii())?;
        for (name, value) in &self.xattrs {
            write!(f, "{}=\"{}\", ", name.escape_ascii(), value.escape_ascii())?;
        }
        let beginning = self.data.iter().copied().take(40).collect::<Vec<u8>>();
        write!(f, "{} bytes: \"{}\"", self.data.len(), beginning.escape_ascii())
    }
}

/// The trees to draw.
#[derive(Debug, Clone, Copy)]
pub struct Kinds {
    /// Whether the caller is root: owners, devices, set-id bits, and attributes of all kinds.
    pub root: bool,
    /// Whether files have holes.
    pub holes: bool,
    pub sockets: bool,
}

/// The reason that trees cannot be made in this directory, such as that of a container without attributes or devices.
pub fn refusal(directory: &Path, root: bool) -> Option<String> {
    let file = directory.join("probe");
    fs::write(&file, "").unwrap();
    let names = if root { &["user.x", "trusted.x", "security.x"][..] } else { &["user.x"] };
    let set =
        names.iter().try_for_each(|name| rustix::fs::lsetxattr(&file, *name, b"x", XattrFlags::empty()));
    fs::remove_file(&file).unwrap();
    if let Err(e) = set {
        return Some(format!("attributes cannot be set in {}: {e}", directory.display()));
    }
    if root {
        let device = rustix::fs::makedev(1, 3);
        let made = rustix::fs::mknodat(CWD, &file, FileType::CharacterDevice, Mode::RUSR, device);
        made.map(|()| fs::remove_file(&file).unwrap()).err().map(|e| format!("devices cannot be made: {e}"))
    } else {
        None
    }
}

/// A random tree.
pub fn draw(random: &mut Random, kinds: Kinds) -> Files {
    let root = file(random, kinds, DIRECTORY);
    let mut files = Files::from([(Vec::new(), root)]);
    let (mut folders, mut links) = (vec![Vec::new()], Vec::<Vec<u8>>::new());
    let names = if random.once_in(30) { 300 } else { 1 + random.index(40) };
    // Now and then each directory is in the one before.
    let is_deep = random.once_in(8);
    for _ in 0..names {
        let folder: &Vec<u8> =
            if is_deep { folders.last().unwrap() } else { &folders[random.index(folders.len())] };
        let name = name(random);
        let path = if folder.is_empty() { name } else { [folder, b"/".as_slice(), &name].concat() };
        // PATH_MAX, with room for the folder of the tree.
        if path.len() > 3500 || files.contains_key(&path) {
            continue;
        }
        if !links.is_empty() && random.once_in(6) {
            let of: Vec<u8> = links[random.index(links.len())].clone();
            files.insert(path, files[&of].clone());
            continue;
        }
        let kind = match random.index(if is_deep { 6 } else { 16 }) {
            0..4 => DIRECTORY,
            4..10 => REGULAR,
            10 | 11 => SYMLINK,
            12 => FIFO,
            13 if kinds.sockets => SOCKET,
            14 if kinds.root => CHAR,
            15 if kinds.root => BLOCK,
            _ => REGULAR,
        };
        let mut drawn = file(random, kinds, kind);
        drawn.first.clone_from(&path);
        match kind {
            DIRECTORY => folders.push(path.clone()),
            _ => links.push(path.clone()),
        }
        files.insert(path, drawn);
    }
    with_first_names(files)
}

/// The tree, with the first of all names of each file as its `first`. Names of one file have the same one before, too.
fn with_first_names(mut files: Files) -> Files {
    let mut first = BTreeMap::new();
    for (path, file) in &mut files {
        file.first = first.entry(file.first.clone()).or_insert_with(|| path.clone()).clone();
    }
    files
}

/// The tree without its sockets, which archives do not have.
pub fn without_sockets(mut files: Files) -> Files {
    files.retain(|_, file| file.kind() != SOCKET);
    files
}

/// A name of any bytes.
fn name(random: &mut Random) -> Vec<u8> {
    let len = if random.once_in(20) { 255 } else { 1 + random.index(12) };
    let mut name = match random.index(3) {
        0 => random.bytes(len),
        _ => (0..len).map(|_| random.pick(b"abc.-_ xyz\n\\\xC3\xA4")).collect(),
    };
    name.iter_mut().filter(|byte| matches!(byte, 0 | b'/')).for_each(|byte| *byte = b'n');
    if matches!(&name[..], b"." | b"..") {
        name = b"dots".to_vec();
    }
    // The marks of layers in archives.
    if name.starts_with(b".wh.") {
        name[0] = b'x';
    }
    name
}

/// A file of this type, without names.
fn file(random: &mut Random, kinds: Kinds, kind: u32) -> File {
    let id =
        |random: &mut Random| random.pick(&[0, 0, 1000, 65_534, 65_535, 65_536, 0x8000_0000, u32::MAX - 1]);
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let (uid, gid) = if kinds.root { (id(random), id(random)) } else { own };
    let permissions = random.index(if kinds.root { 0o10000 } else { 0o1000 }) as u32;
    let permissions = match kind {
        SYMLINK => 0o777,
        DIRECTORY if !kinds.root => permissions | 0o700,
        REGULAR if !kinds.root => permissions | 0o400,
        _ => permissions,
    };
    let (mut device, mut data) = ((0, 0), Vec::new());
    match kind {
        // 0/0 is a mark of layers.
        CHAR | BLOCK => device = (random.index(4096) as u32, 1 + random.index(0xF_FFFF) as u32),
        SYMLINK => {
            let len = if random.once_in(8) { 4095 } else { 1 + random.index(60) };
            data = random.bytes(len);
            data.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b'/');
        }
        REGULAR => data = contents(random, kinds.holes),
        _ => {}
    }
    // A second later than the first that ext4 has, of which it keeps no nanoseconds.
    let mtime = (
        random.pick(&[0, -1, 1, -2_147_483_647, 1_700_000_000, 2_147_483_648, 4_294_967_296, 9_000_000_000]),
        random.pick(&[0, 1, 999_999_999, 500_000_000, 123_456_789, 100]),
    );
    let mut file = File {
        mode: kind | permissions,
        uid,
        gid,
        mtime,
        xattrs: BTreeMap::new(),
        data,
        device,
        first: Vec::new(),
    };
    if random.once_in(3) {
        add_xattrs(random, kinds, &mut file);
    }
    file
}

/// Contents, of which no block is all zeroes unless there may be holes.
fn contents(random: &mut Random, holes: bool) -> Vec<u8> {
    let len = match random.index(8) {
        0 => 0,
        1 => 4094 + random.index(5),
        2 => random.index(100_000),
        _ => random.index(6000),
    };
    let mut data: Vec<u8> = match random.index(3) {
        0 => random.bytes(len).into_iter().map(|byte| byte | 1).collect(),
        1 => vec![1 + random.index(255) as u8; len],
        _ => (0..len).map(|_| random.pick(b"abcdefgh")).collect(),
    };
    if holes && len > 8192 && random.once_in(2) {
        let start = random.index(len);
        let end = start + random.index(len - start);
        data[start..end].fill(0);
    }
    data
}

fn add_xattrs(random: &mut Random, kinds: Kinds, file: &mut File) {
    let is_plain = matches!(file.kind(), REGULAR | DIRECTORY);
    for _ in 0..1 + random.index(4) {
        let prefix = match (is_plain, kinds.root) {
            // Linux has these for files and directories only.
            (true, false) => "user.",
            (true, true) => random.pick(&["user.", "trusted.", "security.", "user.overlay", "user.mime_"]),
            (false, true) => random.pick(&["trusted.", "security."]),
            (false, false) => return,
        };
        let len = 1 + random.index(20);
        let bytes = random.bytes(len).into_iter().map(|byte| byte.max(1));
        let name: Vec<u8> = prefix.bytes().chain(b"x".iter().copied()).chain(bytes).collect();
        let len = random.index(120);
        let value = random.bytes(len);
        file.xattrs.insert(name, value);
    }
    if is_plain && kinds.root && random.once_in(2) {
        let [of_owner, of_mask, of_others] = [6, 3, 0].map(|shift| (file.mode >> shift & 7) as u16);
        let list = access_list(random, [of_owner, of_mask, of_others]);
        file.xattrs.insert(b"system.posix_acl_access".to_vec(), list);
    }
    if file.kind() == DIRECTORY && random.once_in(3) {
        let rights = [(); 3].map(|()| random.index(8) as u16);
        let list = access_list(random, rights);
        file.xattrs.insert(b"system.posix_acl_default".to_vec(), list);
    }
    if file.kind() == REGULAR && kinds.root && random.once_in(4) {
        // The capability CAP_NET_RAW, version 2.
        let numbers = [0x0200_0001u32, 0x2000, 0, 0, 0];
        let value = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        file.xattrs.insert(b"security.capability".to_vec(), value);
    }
}

/// An access list with these rights of the owner, the mask and all others, and one user and one group more.
fn access_list(random: &mut Random, [of_owner, of_mask, of_others]: [u16; 3]) -> Vec<u8> {
    let (user, group) = (random.pick(&[0, 1000, 70_000]), random.pick(&[0, 5, 4_000_000_000]));
    let mut rights = || random.index(8) as u16;
    let rows = [
        (0x01, of_owner, u32::MAX),
        (0x02, rights(), user),
        (0x04, rights(), u32::MAX),
        (0x08, rights(), group),
        (0x10, of_mask, u32::MAX),
        (0x20, of_others, u32::MAX),
    ];
    let row = |(tag, rights, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    2u32.to_le_bytes().into_iter().chain(rows.into_iter().flat_map(row)).collect()
}

fn at(root: &Path, path: &[u8]) -> PathBuf {
    if path.is_empty() { root.into() } else { root.join(OsStr::from_bytes(path)) }
}

/// Makes the tree in a directory that is empty.
pub fn write(files: &Files, root: &Path) {
    for (path, file) in files {
        let to = at(root, path);
        if *path != file.first {
            fs::hard_link(at(root, &file.first), to).unwrap();
            continue;
        }
        let mknod = |kind| {
            let number = rustix::fs::makedev(file.device.0, file.device.1);
            rustix::fs::mknodat(CWD, &to, kind, Mode::RUSR, number).unwrap();
        };
        match file.kind() {
            DIRECTORY if path.is_empty() => {}
            DIRECTORY => fs::create_dir(&to).unwrap(),
            REGULAR => write_contents(&to, &file.data),
            SYMLINK => symlink(OsStr::from_bytes(&file.data), &to).unwrap(),
            CHAR => mknod(FileType::CharacterDevice),
            BLOCK => mknod(FileType::BlockDevice),
            FIFO => mknod(FileType::Fifo),
            _ => mknod(FileType::Socket),
        }
    }
    // Below a directory before it, as what is done below changes it.
    for (path, file) in files.iter().rev().filter(|(path, file)| **path == file.first) {
        let to = at(root, path);
        lchown(&to, Some(file.uid), Some(file.gid)).unwrap();
        for (name, value) in &file.xattrs {
            let name = OsStr::from_bytes(name);
            rustix::fs::lsetxattr(&to, name, value, XattrFlags::empty())
                .unwrap_or_else(|e| panic!("{name:?} of {to:?}: {e}"));
        }
        if file.kind() != SYMLINK {
            fs::set_permissions(&to, PermissionsExt::from_mode(file.mode & 0o7777)).unwrap();
        }
        let time = Timespec { tv_sec: file.mtime.0, tv_nsec: file.mtime.1.into() };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, &to, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

/// Writes contents, with a hole for each block of zeroes.
fn write_contents(to: &Path, data: &[u8]) {
    let file = fs::File::create(to).unwrap();
    file.set_len(data.len() as u64).unwrap();
    for (n, block) in data.chunks(4096).enumerate().filter(|(_, block)| block.iter().any(|byte| *byte != 0)) {
        std::os::unix::fs::FileExt::write_all_at(&file, block, n as u64 * 4096).unwrap();
    }
}

/// Reads the tree in a directory.
pub fn read(root: &Path) -> Files {
    let (mut files, mut inodes) = (Files::new(), BTreeMap::new());
    let mut stack = vec![Vec::new()];
    while let Some(path) = stack.pop() {
        let from = at(root, &path);
        let mut file = read_file(&from);
        if file.kind() == DIRECTORY {
            for entry in fs::read_dir(&from).unwrap() {
                let name = entry.unwrap().file_name();
                let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
                stack.push([&path[..], slash, name.as_bytes()].concat());
            }
            file.first.clone_from(&path);
        } else {
            let metadata = from.symlink_metadata().unwrap();
            let first = inodes.entry((metadata.dev(), metadata.ino())).or_insert_with(|| path.clone());
            file.first.clone_from(first);
        }
        files.insert(path, file);
    }
    with_first_names(files)
}

fn read_file(from: &Path) -> File {
    let metadata = from.symlink_metadata().unwrap_or_else(|e| panic!("{from:?}: {e}"));
    let kind = metadata.file_type();
    let data = match () {
        () if kind.is_file() => fs::read(from).unwrap(),
        () if kind.is_symlink() => fs::read_link(from).unwrap().as_os_str().as_bytes().to_vec(),
        () => Vec::new(),
    };
    let is_device = kind.is_char_device() || kind.is_block_device();
    let number = metadata.rdev();
    let device = if is_device { (rustix::fs::major(number), rustix::fs::minor(number)) } else { (0, 0) };
    File {
        mode: metadata.mode(),
        uid: metadata.uid(),
        gid: metadata.gid(),
        mtime: (metadata.mtime(), metadata.mtime_nsec() as u32),
        xattrs: read_xattrs(from),
        data,
        device,
        first: Vec::new(),
    }
}

fn read_xattrs(from: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let (mut names, mut value) = (vec![0u8; 65_536], vec![0u8; 65_536]);
    let len = match rustix::fs::llistxattr(from, &mut names) {
        Err(rustix::io::Errno::NOTSUP) => 0,
        len => len.unwrap(),
    };
    let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let one = |name: &[u8]| {
        let len = rustix::fs::lgetxattr(from, OsStr::from_bytes(name), &mut value).unwrap();
        (name.to_vec(), value[..len].to_vec())
    };
    names.map(one).collect()
}

/// Asserts that two trees are equal, and shows the first difference.
pub fn assert_same(what: &str, found: &Files, wanted: &Files) {
    if let Some(difference) = difference(found, wanted) {
        panic!("{what}: {difference}");
    }
}

/// The first difference of two trees; `None` if they are equal.
pub fn difference(found: &Files, wanted: &Files) -> Option<String> {
    let paths = found.keys().chain(wanted.keys());
    let differs = |path: &&Vec<u8>| found.get(*path) != wanted.get(*path);
    let path = paths.filter(differs).min()?;
    let shown = |files: &Files| files.get(path).map_or("nothing".into(), |file| format!("{file:?}"));
    let name = path.escape_ascii();
    Some(format!("\"{name}\" is\n{}\nand should be\n{}", shown(found), shown(wanted)))
}
