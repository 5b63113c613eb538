//! Counters of reads and of their cost.

use crate::counters::counters;

counters! {
    /// Counters of one image since it was opened.
    pub struct ReadStats of Counters {
        /// Requests to read file contents.
        reads,
        /// Bytes of file contents that successful requests returned.
        asked_bytes,
        /// Bytes of compressed clusters read from the media.
        compressed_bytes,
        /// Bytes of uncompressed contents read from the media.
        plain_bytes,
        /// Bytes of metadata read from the media.
        metadata_bytes,
        /// Requested bytes that the cache had.
        hit_bytes,
        /// Clusters decoded.
        clusters,
        /// Of these, LZ4 clusters decoded in place, with compressed bytes and output in one buffer.
        in_place,
        /// Of these, LZ4 clusters whose compressed bytes needed a separate buffer.
        bounced,
        /// Of these, clusters decoded through a window because the budget had no room for their output.
        windowed,
        /// Reads that took the result of another thread's decoding of the same cluster.
        joined,
        /// Pages of output that the reader for whom a cluster was decoded did not want.
        temporary_pages,
        /// Clusters that read-ahead began.
        readahead_issued,
        /// Clusters that read-ahead skipped because the budget or its queue had no room.
        readahead_dropped,
        /// Reads of contents that failed.
        errors,
    }
}
