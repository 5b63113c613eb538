//! `Image`: an EROFS image, read in a fixed memory budget.
//!
//! *Fork.* A forked child has an image's memory, but not the threads that read ahead, and perhaps locks that other threads
//! held. It therefore opens the image again when it first uses it, and forgets its copy of the parent's. Positions in the
//! image that the parent has found are valid in the same file only, so another file at the path is refused.

use crate::errors;
use crate::sizes::Size;
use pagefold_image::backing::{ByteSource, FileBacking, open_for_reading};
use pagefold_image::{Image, Node, Options};
use pagefold_sys::forkmark::ForkMark;
use parking_lot::{Mutex, RwLock};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyIsADirectoryError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyDict, PyString};
use std::ffi::OsStr;
use std::fs::Metadata;
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

/// How an image was opened.
#[derive(Clone)]
struct OpenSettings {
    path: PathBuf,
    devices: Vec<PathBuf>,
    memory_bytes: u64,
}

/// Which file was opened, and its state then.
#[derive(PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    len_bytes: u64,
    mtime: (i64, i64),
}

impl From<Metadata> for Identity {
    fn from(of: Metadata) -> Self {
        let mtime = (of.mtime(), of.mtime_nsec());
        Identity { device: of.dev(), inode: of.ino(), len_bytes: of.len(), mtime }
    }
}

/// An image that was opened in one process.
struct OpenImage {
    settings: OpenSettings,
    /// Those of the devices, and last that of the image.
    identities: Vec<Identity>,
    image: ManuallyDrop<Image>,
    mark: ForkMark,
    /// The same image, opened again in a forked child. The interpreter's lock is held while this one is, so that no other
    /// thread holds it during a fork.
    reopened: Mutex<Option<Arc<OpenImage>>>,
}

impl OpenImage {
    fn new(settings: OpenSettings) -> PyResult<Arc<Self>> {
        let mut identities = Vec::new();
        let mut open = |path: &PathBuf| -> PyResult<Arc<dyn ByteSource>> {
            let file = open_for_reading(path)
                .map_err(|e| PyOSError::new_err((e.errno, io_text(e.errno), path.clone())))?;
            identities.push(file.metadata()?.into());
            let backing =
                FileBacking::for_reading(file).map_err(|e| errors::ImageError::new_err(errors::text(&e)))?;
            Ok(Arc::new(backing))
        };
        let devices = settings.devices.iter().map(&mut open).collect::<PyResult<Vec<_>>>()?;
        let options = Options { memory_bytes: settings.memory_bytes, devices, ..Options::default() };
        let mark = errors::fork_mark()?;
        let image = Image::open(open(&settings.path)?, options).map_err(|e| errors::image(&e))?;
        let (image, reopened) = (ManuallyDrop::new(image), Mutex::default());
        Ok(Arc::new(OpenImage { settings, identities, image, mark, reopened }))
    }

    /// Returns this image, or in a forked child the one that the child has opened.
    fn current(self: &Arc<Self>) -> PyResult<Arc<Self>> {
        if self.mark.is_same_process() {
            return Ok(self.clone());
        }
        let mut reopened = self.reopened.lock();
        match &*reopened {
            Some(image) => image.current(),
            None => {
                let image = OpenImage::new(self.settings.clone())?;
                if image.identities != self.identities {
                    let path = self.settings.path.display();
                    let message = format!(
                        "{path} was replaced or changed before this forked process used it: open it again"
                    );
                    return Err(errors::ImageError::new_err(message));
                }
                Ok(reopened.insert(image).clone())
            }
        }
    }
}

fn io_text(errno: i32) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}

impl Drop for OpenImage {
    fn drop(&mut self) {
        // A forked child cannot join the parent's threads.
        if self.mark.is_same_process() {
            // SAFETY: the value is dropped once, as this is the drop of its owner.
            unsafe { ManuallyDrop::drop(&mut self.image) };
        }
    }
}

/// A compressed read-only file system in a file. Threads can share it.
#[pyclass(frozen, weakref, module = "pagefold._native", name = "Image", subclass)]
pub(crate) struct PyImage {
    /// `None` after `close`. As for `OpenImage::reopened`, the interpreter's lock is held while this one is.
    image: RwLock<Option<Arc<OpenImage>>>,
    path: PathBuf,
}

/// A path in an image: text, or bytes for names that are not UTF-8.
struct PathIn(Vec<u8>);

impl<'a, 'py> FromPyObject<'a, 'py> for PathIn {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        match object.cast::<PyBytes>() {
            Ok(bytes) => Ok(PathIn(bytes.as_bytes().to_vec())),
            // As Python's own functions, with surrogates for bytes that are not UTF-8.
            Err(_) => Ok(PathIn(object.extract::<PathBuf>()?.as_os_str().as_bytes().to_vec())),
        }
    }
}

fn name<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyString>> {
    // Bytes that are not UTF-8 become surrogates, as in Python's own functions.
    Ok(OsStr::from_bytes(bytes).into_pyobject(py)?)
}

impl PyImage {
    fn image(&self) -> PyResult<Arc<OpenImage>> {
        let image = self.image.read().clone();
        image.ok_or_else(|| PyValueError::new_err("the image is closed"))?.current()
    }

    fn find(&self, py: Python<'_>, path: &[u8], follow: bool) -> PyResult<(Node, Arc<OpenImage>)> {
        let open = self.image()?;
        let node = py.detach(|| if follow { open.image.resolve(path) } else { open.image.find(path) });
        Ok((node.map_err(|e| errors::image(&e))?, open))
    }
}

#[pymethods]
impl PyImage {
    /// Opens the image at `path`. All reading together takes at most `memory` bytes. `devices` are the further files of
    /// the image, if it has some.
    #[new]
    #[pyo3(signature = (path, *, memory=Size(64 << 20), devices=Vec::new()))]
    fn new(py: Python<'_>, path: PathBuf, memory: Size, devices: Vec<PathBuf>) -> PyResult<Self> {
        // A forked child opens them again, perhaps in another current folder.
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let devices = devices.iter().map(absolute).collect();
        let settings = OpenSettings { path: absolute(&path), devices, memory_bytes: memory.0 };
        let image = py.detach(|| OpenImage::new(settings))?;
        Ok(PyImage { image: RwLock::new(Some(image)), path })
    }

    /// The path of the image.
    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Returns the file or directory at a path of the image. Symbolic links are followed, inside the image only, unless
    /// `follow_symlinks` is false.
    #[pyo3(signature = (path, *, follow_symlinks=true))]
    fn stat(&self, py: Python<'_>, path: PathIn, follow_symlinks: bool) -> PyResult<PyNode> {
        let (node, open) = self.find(py, &path.0, follow_symlinks)?;
        let last = path.0.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty()).unwrap_or_default();
        Ok(PyNode { name: last.to_vec(), node, open })
    }

    /// Returns the entries of a directory, in the order of their names.
    #[pyo3(signature = (path=PathIn(b"/".to_vec())))]
    fn scandir(&self, py: Python<'_>, path: PathIn) -> PyResult<Vec<PyNode>> {
        let (directory, open) = self.find(py, &path.0, true)?;
        py.detach(|| {
            let mut nodes = Vec::new();
            for entry in directory.entries()? {
                let entry = entry?;
                if entry.name == b"." || entry.name == b".." {
                    continue;
                }
                let (node, name) = (open.image.node(entry.nid)?, entry.name.to_vec());
                nodes.push(PyNode { name, node, open: open.clone() });
            }
            Ok(nodes)
        })
        .map_err(|e| errors::image(&e))
    }

    /// Closes the image. Files that are open stay readable.
    fn close(&self, py: Python<'_>) {
        let image = self.image.write().take();
        py.detach(|| drop(image));
    }

    /// Whether the image is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.image.read().is_none()
    }

    /// Returns counters: the memory in use and its limit, bytes read from the file and asked for, clusters decoded.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let image = self.image()?;
        let stats = py.detach(|| image.image.stats());
        [
            ("memory_peak", stats.budget.peak_bytes),
            ("cached", stats.cached_bytes),
            ("read", stats.read_bytes),
            ("asked", stats.reads.asked_bytes),
            ("clusters", stats.reads.clusters),
            ("errors", stats.reads.errors),
        ]
        .into_py_dict(py)
    }

    fn __repr__(&self) -> String {
        let closed = if self.closed() { ", closed" } else { "" };
        format!("<pagefold.Image {}{closed}>", self.path.display())
    }
}

/// A file or directory of an image. It stays usable when the image is closed.
#[pyclass(frozen, module = "pagefold", name = "ImageEntry")]
pub(crate) struct PyNode {
    name: Vec<u8>,
    node: Node,
    // Dropped last, as it decides whether the image may be dropped.
    open: Arc<OpenImage>,
}

#[pymethods]
impl PyNode {
    /// The name in its directory.
    #[getter]
    fn name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        name(py, &self.name)
    }

    /// The type: "file", "directory", "symlink" or another.
    #[getter]
    fn kind(&self) -> &'static str {
        use pagefold_image::read::FileKind;
        match self.node.kind() {
            FileKind::Regular => "file",
            FileKind::Directory => "directory",
            FileKind::Symlink => "symlink",
            FileKind::CharDevice => "character device",
            FileKind::BlockDevice => "block device",
            FileKind::Fifo => "fifo",
            FileKind::Socket => "socket",
        }
    }

    /// The length of the contents in bytes.
    #[getter]
    fn size(&self) -> u64 {
        self.node.len_bytes()
    }

    /// Type and permissions, as `st_mode` of `os.stat`.
    #[getter]
    fn mode(&self) -> u16 {
        self.node.inode().mode
    }

    /// The owner.
    #[getter]
    fn uid(&self) -> u32 {
        self.node.inode().uid
    }

    /// The group.
    #[getter]
    fn gid(&self) -> u32 {
        self.node.inode().gid
    }

    /// The number of hard links.
    #[getter]
    fn nlink(&self) -> u32 {
        self.node.inode().nlink
    }

    /// The number of the inode in the image.
    #[getter]
    fn inode(&self) -> u64 {
        self.node.nid().0
    }

    /// The time of the last change, in nanoseconds since 1970.
    #[getter]
    fn mtime_ns(&self) -> i128 {
        let time = self.node.inode().mtime;
        i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds)
    }

    /// Returns `size` bytes from `offset` on, or all to the end; fewer at the end of the file.
    #[pyo3(signature = (offset=0, size=None))]
    fn read<'py>(&self, py: Python<'py>, offset: u64, size: Option<u64>) -> PyResult<Bound<'py, PyBytes>> {
        self.check_has_contents()?;
        let left = self.node.len_bytes().saturating_sub(offset);
        let len = usize::try_from(size.unwrap_or(left).min(left))
            .map_err(|_| PyValueError::new_err("more bytes than an object can have"))?;
        PyBytes::new_with(py, len, |bytes| {
            // Fewer bytes than the inode says come from no image.
            let node = self.current()?;
            let read = py.detach(|| node.read_at(offset, bytes)).map_err(|e| errors::image(&e))?;
            match read == len {
                true => Ok(()),
                false => Err(errors::ImageError::new_err("the file ends early")),
            }
        })
    }

    /// Reads from `offset` on into a writable buffer, and returns the number of bytes, which is less than the buffer has
    /// only at the end of the file.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        self.check_has_contents()?;
        let buffer = PyBuffer::<u8>::get(buffer)?;
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err("the buffer must be writable and contiguous"));
        }
        let (address, len) = (buffer.buf_ptr().expose_provenance(), buffer.len_bytes());
        // SAFETY: the buffer stays exported until the call ends, so its bytes stay where they are. Python's threads may
        // read or write them meanwhile, as with any object that reads into a buffer without the interpreter's lock.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(address), len) };
        let node = self.current()?;
        py.detach(|| node.read_at(offset, bytes)).map_err(|e| errors::image(&e))
    }

    /// Returns the target of a symbolic link.
    fn readlink<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        let node = self.current()?;
        let target = py.detach(|| node.read_link()).map_err(|e| errors::image(&e))?;
        name(py, &target)
    }

    /// Returns the extended attributes: names and values.
    fn xattrs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let node = self.current()?;
        let xattrs = py.detach(|| node.xattrs()).map_err(|e| errors::image(&e))?;
        let dict = PyDict::new(py);
        xattrs.iter().try_for_each(|x| dict.set_item(name(py, &x.name)?, PyBytes::new(py, &x.value)))?;
        Ok(dict)
    }

    fn __repr__(&self) -> String {
        let name = String::from_utf8_lossy(&self.name);
        format!("<pagefold.ImageEntry {name:?}: {}, {} bytes>", self.kind(), self.node.len_bytes())
    }
}

impl PyNode {
    /// Returns the node, or in a forked child the one of the image that the child has opened.
    fn current(&self) -> PyResult<Node> {
        let open = self.open.current()?;
        match Arc::ptr_eq(&open, &self.open) {
            true => Ok(self.node.clone()),
            false => open.image.node(self.node.nid()).map_err(|e| errors::image(&e)),
        }
    }

    fn check_has_contents(&self) -> PyResult<()> {
        match self.kind() {
            "directory" => Err(PyIsADirectoryError::new_err((
                libc::EISDIR,
                "Is a directory",
                String::from_utf8_lossy(&self.name).into_owned(),
            ))),
            _ => Ok(()),
        }
    }
}
