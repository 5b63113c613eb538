//! [`ZramTree`], which answers the requests of the kernel.

use super::node::{FIXED, Names, Node};
use super::open_file::{OpenFile, PAGE_BYTES, Target};
use super::read_slots::{self, ReadSlots};
use crate::disks::{Disks, Errno, number_after};
use crate::files::ATTRIBUTE_FILES;
use pagefold_fuse::{
    Attr, CachedAttr, Changes, Entries, Entry, FileSystem, FileType, Handle, Inode, NameChange, Offer,
    OpenMode, Opened, Operation, Range, Settings, Unsupported,
};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// For how long the kernel may use the entry of a disk: not at all, because disks come and go without a notice.
const DISK_TTL: Duration = Duration::ZERO;
/// The same for what never changes: the attributes of a file, and the names that a directory always has. Without it the
/// kernel asks for each directory of a path twice each time that the path is used.
const FIXED_TTL: Duration = Duration::from_secs(24 * 3600);
/// Limit of background requests in flight. The tree has none but those that release files.
const MAX_BACKGROUND: u16 = 64;
const BLOCK_DIR: &str = "devices/virtual/block";
/// Where debugfs is in sysfs.
const DEBUG_DIR: &str = "kernel/debug";

/// The longest request, bytes. A write may be longer than what the tree takes of it.
pub(super) const MAX_REQUEST_BYTES: usize = 64 << 10;

/// Makes a node of the number of a name.
type NodeOfName = Box<dyn Fn(u32) -> Node>;

/// Where the tree finds the files of loop devices and of other block devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysfs {
    /// The sysfs that this process reads.
    pub real: PathBuf,
    /// The path at which users of the tree find the same sysfs: links lead there.
    pub links_to: PathBuf,
}

/// The file system.
pub(super) struct ZramTree {
    disks: Arc<dyn Disks>,
    sysfs: Sysfs,
    names: Names,
    open: Mutex<HashMap<u64, Arc<OpenFile>>>,
    next_handle: AtomicU64,
    read_slots: ReadSlots,
}

impl ZramTree {
    pub(super) fn new(disks: Arc<dyn Disks>, sysfs: Sysfs) -> Self {
        ZramTree {
            disks,
            sysfs,
            names: Names::default(),
            open: Mutex::default(),
            next_handle: AtomicU64::new(1),
            read_slots: ReadSlots::new(read_slots::TREE),
        }
    }

    fn find(&self, parent: Node, name: &OsStr) -> Result<Node, Errno> {
        let missing = Errno(libc::ENOENT);
        if let Some((_, node)) = fixed_entries(parent).into_iter().find(|(fixed, _)| name == *fixed) {
            return Ok(node);
        }
        if parent == Node::VirtualBlock {
            return self.disk_of_minor(number_after("loop", name)).map(|(minor, _)| Node::Disk(minor));
        }
        if let (Some(node), Some(number)) = (of_disk(parent), number_after("zram", name)) {
            self.disks.device(number).map_err(|_| missing)?;
            return if self.is_shown(parent, number) { Ok(node(number)) } else { Err(missing) };
        }
        let (dir, node) = self.others(parent).ok_or(missing)?;
        match parent {
            Node::Debug if self.disks.debugfs(&dir).iter().any(|found| found == name) => {}
            Node::Debug => return Err(missing),
            _ => exists(&dir.join(name))?,
        }
        Ok(node(self.names.number(name)))
    }

    /// Whether a directory has an entry for this disk. A disk without a size has no pool.
    fn is_shown(&self, parent: Node, number: u32) -> bool {
        let has_size = || self.disks.read(number, "initstate").is_ok_and(|state| state == "1");
        parent != Node::DebugZsmalloc || has_size()
    }

    /// The real directory whose further entries are links in this one, and their nodes by the number of the name.
    fn others(&self, parent: Node) -> Option<(PathBuf, NodeOfName)> {
        let real = &self.sysfs.real;
        match parent {
            Node::Block => Some((real.join("block"), Box::new(Node::BlockOther))),
            Node::Disk(minor) => {
                Some((self.loop_dir(real, minor), Box::new(move |name| Node::OfLoop(minor, name))))
            }
            Node::Debug => Some((real.join(DEBUG_DIR), Box::new(Node::DebugOther))),
            _ => None,
        }
    }

    /// The disk whose device is `/dev/loopM`, as M and its number. ENOENT: no disk has this device.
    fn disk_of_minor(&self, minor: Option<u32>) -> Result<(u32, u32), Errno> {
        let wanted = minor.ok_or(Errno(libc::ENOENT))?;
        let numbers = self.disks.numbers()?.into_iter();
        let mut minors = numbers.filter_map(|number| Some((self.minor_of(number).ok()?, number)));
        minors.find(|(minor, _)| *minor == wanted).ok_or(Errno(libc::ENOENT))
    }

    /// The minor number of a disk's loop device.
    fn minor_of(&self, number: u32) -> Result<u32, Errno> {
        let device = self.disks.device(number)?;
        device.file_name().and_then(|name| number_after("loop", name)).ok_or(Errno(libc::ENODEV))
    }

    fn loop_dir(&self, sysfs: &Path, minor: u32) -> PathBuf {
        sysfs.join(BLOCK_DIR).join(format!("loop{minor}"))
    }

    fn link_target(&self, node: Node) -> Result<OsString, Errno> {
        let missing = Errno(libc::ENOENT);
        match node {
            Node::DiskLink(number) => Ok(format!("{BLOCK_DIR}/loop{}", self.minor_of(number)?).into()),
            Node::BlockDisk(number) => Ok(format!("../{BLOCK_DIR}/loop{}", self.minor_of(number)?).into()),
            Node::BlockOther(name) => {
                let path = self.sysfs.real.join("block").join(self.names.name(name).ok_or(missing)?);
                std::fs::read_link(path).map(OsString::from).map_err(|e| errno(&e))
            }
            Node::OfLoop(minor, name) => {
                let (name, dir) = (self.names.name(name).ok_or(missing)?, &self.sysfs.links_to);
                // Of some links of sysfs, such as `subsystem`, programs read the name of the target only.
                match std::fs::read_link(self.loop_dir(&self.sysfs.real, minor).join(&name)) {
                    Ok(target) => Ok(join_link(&self.loop_dir(dir, minor), &target).into()),
                    Err(_) => Ok(self.loop_dir(dir, minor).join(name).into()),
                }
            }
            Node::DebugOther(name) => {
                let dir = self.sysfs.links_to.join(DEBUG_DIR);
                Ok(dir.join(self.names.name(name).ok_or(missing)?).into())
            }
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    /// The entries of a directory, without `.` and `..`.
    fn entries(&self, node: Node) -> Result<Vec<(OsString, Node)>, Errno> {
        let fixed = fixed_entries(node);
        let mut entries: Vec<_> = fixed.iter().map(|(name, node)| (OsString::from(name), *node)).collect();
        if let Some(of_disk) = of_disk(node) {
            let numbers = self.disks.numbers()?.into_iter().filter(|number| self.is_shown(node, *number));
            entries.extend(numbers.map(|number| (format!("zram{number}").into(), of_disk(number))));
        }
        if node == Node::VirtualBlock {
            let minors = self.disks.numbers()?.into_iter().filter_map(|number| self.minor_of(number).ok());
            entries.extend(minors.map(|minor| (format!("loop{minor}").into(), Node::Disk(minor))));
        }
        if let Some((dir, other)) = self.others(node) {
            // The directory of a disk that has just been removed is missing, and debugfs may be. The kernel's own devices
            // are left out of the block devices: their numbers would be ambiguous.
            let names = match node {
                Node::Block => names_in(&dir)?,
                Node::Debug => self.disks.debugfs(&dir),
                _ => names_in(&dir).unwrap_or_default(),
            };
            let is_zram = |name: &OsString| node == Node::Block && name.as_bytes().starts_with(b"zram");
            let is_other = |name: &OsString| !is_zram(name) && fixed.iter().all(|(fixed, _)| name != *fixed);
            let others = names.into_iter().filter(is_other);
            entries.extend(others.map(|name| (name.clone(), other(self.names.number(&name)))));
        }
        match kind(node) {
            FileType::Directory => Ok(entries),
            _ => Err(Errno(libc::ENOTDIR)),
        }
    }

    /// Opens a file for what its mode allows. The kernel lets root pass, sysfs does not, and debugfs does.
    fn open_file(&self, node: Node, flags: i32) -> Result<u64, Errno> {
        let (mode, access) = (mode(node), flags & libc::O_ACCMODE);
        let (reads, writes) = (access != libc::O_WRONLY, access != libc::O_RDONLY);
        let is_refused = (reads && mode & 0o444 == 0) || (writes && mode & 0o222 == 0);
        if is_refused && !is_of_debugfs(node) {
            return Err(Errno(libc::EACCES));
        }
        let target = match node {
            Node::HotAdd => Target::HotAdd,
            Node::HotRemove => Target::HotRemove,
            Node::Attribute(minor, index) => {
                let file = ATTRIBUTE_FILES.get(index as usize).ok_or(Errno(libc::ENOENT))?;
                let (_, number) = self.disk_of_minor(Some(minor))?;
                Target::Attribute { number, name: file.name }
            }
            Node::BlockState(number) => Target::BlockState { number },
            Node::Classes(number) => Target::Classes { number },
            _ => return Err(Errno(libc::EISDIR)),
        };
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.lock_open().insert(handle, Arc::new(OpenFile::new(target)));
        Ok(handle)
    }

    fn opened(&self, handle: Handle) -> Result<Arc<OpenFile>, Errno> {
        self.lock_open().get(&handle.0).cloned().ok_or(Errno(libc::EBADF))
    }

    fn lock_open(&self) -> MutexGuard<'_, HashMap<u64, Arc<OpenFile>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The entries that a directory always has.
fn fixed_entries(node: Node) -> Vec<(&'static str, Node)> {
    match node {
        Node::Root => vec![
            ("block", Node::Block),
            ("class", Node::Class),
            ("devices", Node::Devices),
            ("kernel", Node::Kernel),
        ],
        Node::Class => vec![("zram-control", Node::ZramControl)],
        Node::ZramControl => vec![("hot_add", Node::HotAdd), ("hot_remove", Node::HotRemove)],
        Node::Devices => vec![("virtual", Node::Virtual)],
        Node::Virtual => vec![("block", Node::VirtualBlock)],
        Node::Kernel => vec![("debug", Node::Debug)],
        Node::Debug => vec![("zram", Node::DebugZram), ("zsmalloc", Node::DebugZsmalloc)],
        Node::DebugDisk(number) => vec![("block_state", Node::BlockState(number))],
        Node::DebugPool(number) => vec![("classes", Node::Classes(number))],
        Node::Disk(minor) => {
            let attributes = (0..).zip(ATTRIBUTE_FILES.iter());
            attributes.map(|(index, file)| (file.name, Node::Attribute(minor, index))).collect()
        }
        _ => Vec::new(),
    }
}

/// The entry of a directory that has one `zramN` for each disk.
fn of_disk(node: Node) -> Option<fn(u32) -> Node> {
    match node {
        Node::Root => Some(Node::DiskLink),
        Node::Block => Some(Node::BlockDisk),
        Node::DebugZram => Some(Node::DebugDisk),
        Node::DebugZsmalloc => Some(Node::DebugPool),
        _ => None,
    }
}

fn kind(node: Node) -> FileType {
    match node {
        Node::HotAdd | Node::HotRemove | Node::Attribute(..) => FileType::Regular,
        _ if is_of_debugfs(node) => FileType::Regular,
        Node::DiskLink(_) | Node::BlockDisk(_) | Node::BlockOther(_) | Node::OfLoop(..) => FileType::Symlink,
        Node::DebugOther(_) => FileType::Symlink,
        _ => FileType::Directory,
    }
}

/// Whether it is a file that debugfs has. Its length is 0 there, and a write is refused instead of an open.
fn is_of_debugfs(node: Node) -> bool {
    matches!(node, Node::BlockState(_) | Node::Classes(_))
}

fn mode(node: Node) -> u16 {
    match node {
        Node::HotAdd => 0o400,
        Node::HotRemove => 0o200,
        Node::Attribute(_, index) => ATTRIBUTE_FILES.get(index as usize).map_or(0, |file| file.mode),
        Node::BlockState(_) => 0o400,
        Node::Classes(_) => 0o444,
        Node::Debug => 0o700,
        _ if kind(node) == FileType::Symlink => 0o777,
        _ => 0o755,
    }
}

fn attr(node: Node) -> Attr {
    let kind = kind(node);
    let size = if kind == FileType::Regular && !is_of_debugfs(node) { PAGE_BYTES as u64 } else { 0 };
    let nlink = if kind == FileType::Directory { 2 } else { 1 };
    Attr { size, nlink, ..Attr::new(node.inode(), kind, mode(node), PAGE_BYTES as u32) }
}

/// For how long the kernel may use a name without asking again. An attribute is found in the directory of its disk, which
/// the kernel asks for each time.
fn ttl(node: Node) -> Duration {
    match matches!(node, Node::Attribute(..)) || FIXED.contains(&node) {
        true => FIXED_TTL,
        false => DISK_TTL,
    }
}

/// The path that a relative link in `dir` leads to. No directory on the way is a link.
fn join_link(dir: &Path, target: &Path) -> PathBuf {
    let mut path = dir.to_path_buf();
    for part in target.components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            part => path.push(part),
        }
    }
    path
}

fn exists(path: &Path) -> Result<(), Errno> {
    path.symlink_metadata().map(drop).map_err(|e| errno(&e))
}

fn names_in(dir: &Path) -> Result<Vec<OsString>, Errno> {
    let entries = std::fs::read_dir(dir).map_err(|e| errno(&e))?;
    Ok(entries.flatten().map(|entry| entry.file_name()).collect())
}

fn errno(e: &io::Error) -> Errno {
    Errno(e.raw_os_error().unwrap_or(libc::EIO))
}

/// The node with an inode number.
fn node_of(inode: Inode) -> Result<Node, Errno> {
    Node::of(inode).ok_or(Errno(libc::ENOENT))
}

impl FileSystem for ZramTree {
    fn init(&mut self, _: &Offer) -> Result<Settings, Unsupported> {
        Ok(Settings::for_requests_of(MAX_REQUEST_BYTES, MAX_BACKGROUND))
    }

    /// Reads and writes call the server of a disk.
    fn waits(&self, operation: &Operation<'_>) -> bool {
        matches!(operation, Operation::Read(_) | Operation::Write { .. })
    }

    fn lookup(&self, parent: Inode, name: &OsStr) -> Result<Entry, Errno> {
        let node = self.find(node_of(parent)?, name)?;
        Ok(Entry { attr: Some(attr(node)), ttl: ttl(node) })
    }

    fn attr(&self, inode: Inode) -> Result<CachedAttr, Errno> {
        Ok(CachedAttr { attr: attr(node_of(inode)?), ttl: FIXED_TTL })
    }

    fn set_attr(&self, inode: Inode, changes: &Changes) -> Result<CachedAttr, Errno> {
        // Shells truncate what they redirect to: that changes nothing, nor does setting times.
        if changes.mode.is_some() || changes.uid.is_some() || changes.gid.is_some() {
            return Err(Errno(libc::EPERM));
        }
        self.attr(inode)
    }

    fn read_link(&self, inode: Inode) -> Result<Vec<u8>, Errno> {
        self.link_target(node_of(inode)?).map(OsString::into_vec)
    }

    fn open(&self, inode: Inode, flags: i32) -> Result<Opened, Errno> {
        let handle = Handle(self.open_file(node_of(inode)?, flags)?);
        // The kernel would otherwise let one write wait for another to the same file.
        let mode = OpenMode::DIRECT_IO | OpenMode::PARALLEL_DIRECT_WRITES | OpenMode::NOFLUSH;
        Ok(Opened { handle, mode })
    }

    fn read(&self, _: Inode, range: Range, buffer: &mut [u8]) -> Result<usize, Errno> {
        let file = self.opened(range.handle)?;
        let data = file.read(&*self.disks, &self.read_slots, range.offset, range.size as usize)?;
        let target = buffer.get_mut(..data.len()).ok_or(Errno(libc::EIO))?;
        target.copy_from_slice(&data);
        Ok(data.len())
    }

    fn write(&self, _: Inode, handle: Handle, _: u64, data: &[u8]) -> Result<usize, Errno> {
        self.opened(handle)?.write(&*self.disks, data)
    }

    fn release(&self, handle: Handle) {
        self.lock_open().remove(&handle.0);
    }

    /// The entries come in the order of their inode numbers, which are also their positions: block devices may appear and
    /// vanish between two requests, and nothing else is shown twice or left out then.
    fn read_dir(&self, inode: Inode, offset: u64, entries: &mut Entries<'_>) -> Result<(), Errno> {
        const DOTS: u64 = 2;
        let nodes = self.entries(node_of(inode)?)?;
        let nodes = nodes.into_iter().map(|(name, node)| (name, node.inode(), kind(node)));
        let mut nodes: Vec<_> = nodes.collect();
        nodes.sort_unstable_by_key(|(_, inode, _)| *inode);
        let dots = [".", ".."].map(|name| (OsString::from(name), inode, FileType::Directory));
        let dots = (1..).zip(dots);
        let all = dots.chain(nodes.into_iter().map(|entry| (entry.1.0 + DOTS, entry)));
        for (position, (name, inode, kind)) in all.skip_while(|(position, _)| *position <= offset) {
            if !entries.add(inode, position, kind, &name) {
                break;
            }
        }
        Ok(())
    }

    fn change_names(&self, change: NameChange) -> Errno {
        match change {
            NameChange::Create => Errno(libc::EACCES),
            NameChange::Other => Errno(libc::EPERM),
        }
    }
}
