//! Statistics of a region: an object for programs, a line for people, and a table for notebooks.

use pagefold_memory::RegionStats;
use pagefold_page::size::Human;
use pyo3::prelude::*;

macro_rules! region_stats {
    ($stats:ident, $size:ident, $arrays:ident; $($(#[$doc:meta])* $field:ident: $kind:ty = $value:expr;)*) => {
        /// Statistics of a region at one moment. Sizes are in bytes.
        #[pyclass(frozen, get_all, module = "pagefold", name = "RegionStats")]
        #[derive(Debug, Clone, Copy)]
        pub(crate) struct PyRegionStats { $($(#[$doc])* $field: $kind,)* }

        impl PyRegionStats {
            pub(crate) fn new($stats: &RegionStats, $size: u64, $arrays: u64) -> Self {
                PyRegionStats { $($field: $value,)* }
            }
        }
    };
}

region_stats! {
    stats, size, arrays;
    /// The size of the region; of the memory of `numpy_memory`, the size of the arrays in it.
    size: u64 = size;
    /// The arrays in the region, where pagefold knows them (`numpy_memory`); otherwise 0.
    arrays: u64 = arrays;
    /// The limit on resident memory.
    memory: u64 = stats.memory.limit;
    /// The memory that resident pages take now.
    resident: u64 = stats.memory.resident;
    /// The highest value of `resident` so far.
    resident_max: u64 = stats.memory.resident_max;
    /// Bytes of the region that are only compressed now.
    compressed: u64 = stats.folded_bytes;
    /// The memory that compressed pages take.
    pool: u64 = stats.memory.pool;
    /// The memory that the region's tables take. It is not given back while the region exists.
    tables: u64 = stats.memory.metadata;
    /// The memory of the kernel's page tables, about: 4 KiB for each 2 MiB of the region that have or had a page.
    page_tables: u64 = stats.memory.page_tables;
    /// The uncompressed size of compressed pages divided by their compressed size; 0 if there are none.
    ratio: f64 = stats.ratio();
    /// Pages touched for the first time.
    first_touches: u64 = stats.faults.zero;
    /// Accesses that waited until a compressed page was back.
    faults: u64 = stats.faults.folded + stats.faults.staged;
    /// Compressed pages that came back together with another, before they were touched.
    read_ahead: u64 = stats.neighbours_brought;
    /// Pages read from the file that the region began with.
    file_reads: u64 = stats.faults.file_reads;
    /// Reads of that file: adjacent pages are read together.
    file_read_calls: u64 = stats.faults.file_read_calls;
    /// Of `file_reads`, the pages that were read again, because the memory for compressed pages was full.
    file_rereads: u64 = stats.faults.file_rereads;
    /// Pages that left the resident memory.
    evicted: u64 = stats.eviction.staged;
    /// Attempts to evict a page that the kernel or a device used, or that was locked.
    unmovable: u64 = stats.eviction.unmovable;
    /// Seconds that the region's threads spent in serving accesses.
    fault_seconds: f64 = stats.faults.time.as_secs_f64();
    /// Seconds of these in which they waited for memory.
    wait_seconds: f64 = stats.faults.wait_time.as_secs_f64();
    /// How often the memory for compressed pages was full.
    pool_limit_hit: u64 = stats.pool.pool_limit_hit;
}

impl PyRegionStats {
    /// Returns the line that follows the name of a type in its `repr`.
    pub(crate) fn line(&self) -> String {
        let arrays = match self.arrays {
            0 => String::new(),
            1 => " in 1 array".to_string(),
            n => format!(" in {n} arrays"),
        };
        let [size, resident, memory, compressed, pool] =
            [self.size, self.resident, self.memory, self.compressed, self.pool].map(Human);
        let mut line = format!("{size}{arrays}: {resident} resident of at most {memory}");
        if self.compressed > 0 {
            line += &format!(", {compressed} compressed to {pool}");
        }
        line
    }

    /// Returns a table, with a bar of resident and compressed bytes.
    pub(crate) fn html(&self, title: &str) -> String {
        let whole = self.size.max(self.resident + self.compressed).max(1) as f64;
        let percent = |bytes: u64| 100.0 * bytes as f64 / whole;
        let bar = |colour: &str, bytes: u64| {
            format!("<div style=\"width:{:.1}%;background:{colour}\"></div>", percent(bytes))
        };
        let mut rows = vec![
            ("Size", Human(self.size).to_string()),
            ("Resident", format!("{} of at most {}", Human(self.resident), Human(self.memory))),
            ("Compressed", format!("{} to {}", Human(self.compressed), Human(self.pool))),
            ("Faults", format!("{} in {:.1} s", self.faults, self.fault_seconds)),
            ("Brought back in advance", self.read_ahead.to_string()),
            ("Evicted", self.evicted.to_string()),
        ];
        if self.file_reads > 0 {
            let (pages, calls, again) = (self.file_reads, self.file_read_calls, self.file_rereads);
            rows.push((
                "Read from the file",
                format!("{pages} pages in {calls} reads, {again} of them again"),
            ));
        }
        let rows: String =
            rows.iter().map(|(name, value)| format!("<tr><th>{name}</th><td>{value}</td></tr>")).collect();
        format!(
            "<div><b>{title}</b><div style=\"display:flex;width:24em;height:.8em;background:#eee\">{}{}</div>\
             <table>{rows}</table></div>",
            bar("#2b7", self.resident),
            bar("#48c", self.compressed),
        )
    }
}

#[pymethods]
impl PyRegionStats {
    fn __repr__(&self) -> String {
        format!("<pagefold.RegionStats {}>", self.line())
    }

    fn _repr_html_(&self) -> String {
        self.html("pagefold")
    }
}
