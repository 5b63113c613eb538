//! A job over a table that is larger than memory: make it, sort it, group it.
//!
//! The table consists of sales records in a range of memory from the caller; a second table, with one row for
//! each customer, follows in the same range. The job works with any kind of memory. All data depends on the
//! seed only, so two runs on any machines have the same checksum. The job checks itself: the grouped records
//! must be the generated ones, in order.

use std::fmt;

/// The seed of the table, the same for all users of the job.
pub const SEED: u64 = 0x6c61_7267_6572;
/// Records for each customer, on average.
const RECORDS_PER_CUSTOMER: usize = 64;
/// Products that are sold.
const PRODUCTS: u64 = 4096;
/// Number of records or comparisons between two calls of `progress`.
const PROGRESS_EVERY: usize = 1 << 16;

const COUNTRIES: [[u8; 2]; 8] = [*b"DE", *b"FR", *b"US", *b"US", *b"US", *b"GB", *b"IN", *b"BR"];
const STATUSES: [[u8; 12]; 6] = [
    *b"delivered   ",
    *b"delivered   ",
    *b"delivered   ",
    *b"shipped     ",
    *b"in transit  ",
    *b"returned    ",
];
const CHANNELS: [[u8; 8]; 3] = [*b"web     ", *b"app     ", *b"store   "];

/// One sale. Plain old data: integers and bytes, and no padding.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Microseconds since 1970; no two are the same.
    pub timestamp_us: u64,
    /// The customer's number.
    pub customer: u32,
    /// The product's number.
    pub product: u32,
    /// Price of one item, in cents.
    pub price_cents: u32,
    /// Number of items.
    pub quantity: u16,
    /// Country of the customer.
    pub country: [u8; 2],
    /// State of the delivery.
    pub status: [u8; 12],
    /// Sales channel.
    pub channel: [u8; 8],
    /// Zeroes.
    pub reserved: [u8; 20],
}

/// The totals of one customer. Plain old data without padding.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// The customer's number.
    pub customer: u32,
    /// The product of most records; of several such products, the one with the lowest number.
    pub top_product: u32,
    /// Number of records.
    pub count: u64,
    /// Sum of price times quantity.
    pub sum_cents: u64,
}

const _: () = assert!(size_of::<Record>() == 64 && size_of::<Group>() == 24);

/// A phase of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Generating the table, in the order of time.
    Generate,
    /// Sorting the table by customer and time.
    Sort,
    /// Making one row for each customer.
    Group,
}

impl Phase {
    /// The name of the phase.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Generate => "generate",
            Phase::Sort => "sort",
            Phase::Group => "group",
        }
    }
}

/// The result of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobResult {
    /// Records in the table.
    pub records: usize,
    /// Rows in the second table.
    pub groups: usize,
    /// Checksum of all records and groups, in their order.
    pub checksum: u64,
}

/// An error of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobError {
    /// The memory has no room for a table.
    TooSmall,
    /// The record with this index is out of order.
    NotSorted(usize),
    /// The grouped records are not the generated ones.
    Changed,
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobError::TooSmall => write!(f, "the memory is too small for a table"),
            JobError::NotSorted(at) => write!(f, "record {at} is out of order after the sort"),
            JobError::Changed => write!(f, "the records are not those that were generated"),
        }
    }
}

impl std::error::Error for JobError {}

/// Generates the table in `memory`, sorts it, and groups it. Overwrites the contents of the memory.
///
/// Calls `progress` at least once in each phase, with the phase and its completed part, 0 to 1.
pub fn run(
    memory: &mut [u8],
    seed: u64,
    progress: &mut dyn FnMut(Phase, f64),
) -> Result<JobResult, JobError> {
    let (records, groups) = tables(memory)?;
    let made = generate(records, groups.len(), seed, progress);
    sort(records, progress);
    let (result, grouped) = group(records, groups, progress)?;
    if grouped != made { Err(JobError::Changed) } else { Ok(result) }
}

/// Only generates the table, in the order of time. Returns the number of records.
#[cfg(test)]
pub fn make(memory: &mut [u8], seed: u64) -> Result<usize, JobError> {
    let (records, groups) = tables(memory)?;
    generate(records, groups.len(), seed, &mut |_, _| ());
    Ok(records.len())
}

/// Splits the memory into the two tables: as many records as fit together with a group for every 64 of them.
pub fn tables(memory: &mut [u8]) -> Result<(&mut [Record], &mut [Group]), JobError> {
    let unit = RECORDS_PER_CUSTOMER * size_of::<Record>() + size_of::<Group>();
    // Alignment may take up to 16 bytes.
    let customers = memory.len().saturating_sub(16) / unit;
    if customers == 0 {
        return Err(JobError::TooSmall);
    }
    let records = customers * RECORDS_PER_CUSTOMER;
    let (first, second) = memory.split_at_mut(8 + records * size_of::<Record>());
    // SAFETY: `Record` is integers and bytes without padding (its size is the sum of its fields, checked
    // above), so any bytes are a valid record and the reverse; align_to returns only aligned records.
    let (_, table, _) = unsafe { first.align_to_mut::<Record>() };
    // SAFETY: the same holds for `Group`.
    let (_, rows, _) = unsafe { second.align_to_mut::<Group>() };
    // Alignment takes fewer bytes than were set aside for it, so all records and groups fit.
    Ok((&mut table[..records], &mut rows[..customers]))
}

/// Generates the table in the order of time. Returns a sum of all records that does not depend on their order.
fn generate(
    records: &mut [Record],
    customers: usize,
    seed: u64,
    progress: &mut dyn FnMut(Phase, f64),
) -> u64 {
    let count = records.len();
    let mut random = Random(seed);
    let mut timestamp_us = 1_700_000_000_000_000;
    let mut sum = 0u64;
    for (i, record) in records.iter_mut().enumerate() {
        if i.is_multiple_of(PROGRESS_EVERY) {
            progress(Phase::Generate, i as f64 / count as f64);
        }
        timestamp_us += 1 + random.below(20_000);
        *record = draw_record(&mut random, timestamp_us, customers as u64);
        sum = sum.wrapping_add(hash(record));
    }
    sum
}

fn draw_record(random: &mut Random, timestamp_us: u64, customers: u64) -> Record {
    // The smaller of two random numbers: some customers buy much, most of them little. An odd factor spreads the
    // numbers.
    let rank = random.below(customers).min(random.below(customers)) as u32;
    let product = random.below(PRODUCTS).min(random.below(PRODUCTS)) as u32;
    let drawn = random.next();
    let pick = |shift: u32, n: usize| (drawn >> shift) as usize % n;
    Record {
        timestamp_us,
        customer: rank.wrapping_mul(0x9e37_79b1),
        product,
        // The price depends on the product only.
        price_cents: 99 + 100 * (product.wrapping_mul(2_654_435_761) >> 24),
        quantity: 1 + (pick(0, 8) == 0) as u16 * pick(8, 10) as u16,
        country: COUNTRIES[pick(16, 8)],
        status: STATUSES[pick(24, 6)],
        channel: CHANNELS[pick(32, 3)],
        reserved: [0; 20],
    }
}

fn sort(records: &mut [Record], progress: &mut dyn FnMut(Phase, f64)) {
    progress(Phase::Sort, 0.0);
    // The number of comparisons is not known in advance: about log2(n) for each record.
    let expected = records.len() as f64 * (records.len() as f64).log2().max(1.0);
    let mut comparisons = 0usize;
    records.sort_unstable_by(|a, b| {
        comparisons += 1;
        if comparisons.is_multiple_of(PROGRESS_EVERY) {
            progress(Phase::Sort, (comparisons as f64 / expected).min(0.99));
        }
        key(a).cmp(&key(b))
    });
}

fn key(record: &Record) -> (u32, u64) {
    (record.customer, record.timestamp_us)
}

/// Makes the groups of a sorted table. Returns the result of the job, and the sum of all records.
fn group(
    records: &[Record],
    groups: &mut [Group],
    progress: &mut dyn FnMut(Phase, f64),
) -> Result<(JobResult, u64), JobError> {
    let (mut sum, mut checksum) = (0u64, 0u64);
    let mut made = 0;
    let mut products = Vec::new();
    let mut current = Group { customer: 0, top_product: 0, count: 0, sum_cents: 0 };
    let mut before: Option<(u32, u64)> = None;
    let mut close = |current: &mut Group, products: &mut Vec<u32>| {
        current.top_product = most_frequent(products);
        products.clear();
        // There are no more customers than groups, unless records have changed.
        *groups.get_mut(made).ok_or(JobError::Changed)? = *current;
        made += 1;
        Ok(())
    };
    for (i, record) in records.iter().enumerate() {
        if i.is_multiple_of(PROGRESS_EVERY) {
            progress(Phase::Group, i as f64 / records.len() as f64);
        }
        match before {
            Some(last) if last >= key(record) => return Err(JobError::NotSorted(i)),
            Some((customer, _)) if customer != record.customer => close(&mut current, &mut products)?,
            _ => {}
        }
        if products.is_empty() {
            current = Group { customer: record.customer, top_product: 0, count: 0, sum_cents: 0 };
        }
        current.count += 1;
        current.sum_cents += u64::from(record.price_cents) * u64::from(record.quantity);
        products.push(record.product);
        let hash = hash(record);
        sum = sum.wrapping_add(hash);
        checksum = mix(checksum ^ hash);
        before = Some(key(record));
    }
    close(&mut current, &mut products)?;
    let joined = |sum, group: &Group| {
        let words =
            [u64::from(group.customer) << 32 | u64::from(group.top_product), group.count, group.sum_cents];
        words.into_iter().fold(sum, |sum, word| mix(sum ^ word))
    };
    let checksum = groups[..made].iter().fold(checksum, joined);
    Ok((JobResult { records: records.len(), groups: made, checksum }, sum))
}

/// The most frequent number; of several, the lowest. 0 for an empty slice.
fn most_frequent(numbers: &mut [u32]) -> u32 {
    numbers.sort_unstable();
    let runs = numbers.chunk_by(|a, b| a == b);
    // Of equal runs `max_by_key` returns the last one, so this iterates from the end.
    let longest = runs.rev().max_by_key(|run| run.len());
    longest.and_then(|run| run.first().copied()).unwrap_or(0)
}

/// A hash of all fields of a record.
fn hash(record: &Record) -> u64 {
    let word = |bytes: &[u8]| bytes.iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    let numbers = [
        record.timestamp_us,
        u64::from(record.customer) << 32 | u64::from(record.product),
        u64::from(record.price_cents) << 16 | u64::from(record.quantity),
        word(&record.country) << 32 | word(&record.status[8..]),
        word(&record.status[..8]),
        word(&record.channel),
        word(&record.reserved[..8]),
        word(&record.reserved[8..16]),
        word(&record.reserved[16..]),
    ];
    numbers
        .into_iter()
        .fold(0, |hash, number| (hash ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29))
}

/// A bijective scramble of 64 bits (the finaliser of splitmix64, after Vigna; public domain).
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A small generator of random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `n`, which is not 0.
    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const LEN_BYTES: usize = 3 << 20;

    fn no_progress(_: Phase, _: f64) {}

    #[test]
    fn the_table_is_sorted_and_its_groups_equal_those_of_a_map() {
        let mut memory = vec![0; LEN_BYTES];
        let result = run(&mut memory, 1, &mut no_progress).unwrap();
        let (records, groups) = tables(&mut memory).unwrap();
        assert!(records.is_sorted_by_key(key));
        let mut reference: BTreeMap<u32, (u64, u64, BTreeMap<u32, u32>)> = BTreeMap::new();
        for record in records.iter() {
            let (count, sum, products) = reference.entry(record.customer).or_default();
            *count += 1;
            *sum += u64::from(record.price_cents) * u64::from(record.quantity);
            *products.entry(record.product).or_default() += 1;
        }
        assert_eq!(result.groups, reference.len());
        for (group, (customer, (count, sum, products))) in groups.iter().zip(&reference) {
            let most = products.values().max().unwrap();
            let top = products.iter().find(|(_, times)| *times == most).unwrap().0;
            let wanted = Group { customer: *customer, top_product: *top, count: *count, sum_cents: *sum };
            assert_eq!(*group, wanted);
        }
    }

    #[test]
    fn the_sorted_records_are_the_generated_ones() {
        let (mut memory, mut unsorted) = (vec![0; LEN_BYTES], vec![0; LEN_BYTES]);
        run(&mut memory, 1, &mut no_progress).unwrap();
        let (records, groups) = tables(&mut unsorted).unwrap();
        generate(records, groups.len(), 1, &mut no_progress);
        assert!(records.is_sorted_by_key(|record| record.timestamp_us));
        records.sort_by_key(key);
        assert_eq!(*records, *tables(&mut memory).unwrap().0);
    }

    #[test]
    fn the_result_depends_on_the_seed_and_not_on_the_address() {
        let mut memory = vec![0xff; LEN_BYTES + 8];
        let mut run = |seed, from| run(&mut memory[from..from + LEN_BYTES], seed, &mut no_progress).unwrap();
        let first = run(1, 0);
        assert!((1..8).all(|from| run(1, from) == first));
        assert_ne!(run(2, 0).checksum, first.checksum);
    }

    #[test]
    fn a_changed_or_misplaced_record_is_noticed() {
        let mut memory = vec![0; LEN_BYTES];
        let (records, groups) = tables(&mut memory).unwrap();
        let made = generate(records, groups.len(), 1, &mut no_progress);
        assert!(matches!(group(records, groups, &mut no_progress), Err(JobError::NotSorted(_))));
        sort(records, &mut no_progress);
        assert_eq!(group(records, groups, &mut no_progress).unwrap().1, made);
        let changes: [fn(&mut Record); 3] =
            [|r| r.status[7] ^= 1, |r| r.reserved[19] ^= 1, |r| r.quantity += 1];
        for change in changes {
            let saved = records[77];
            change(&mut records[77]);
            assert_ne!(group(records, groups, &mut no_progress).unwrap().1, made);
            records[77] = saved;
        }
        records.swap(1000, 1001);
        assert_eq!(group(records, groups, &mut no_progress), Err(JobError::NotSorted(1001)));
    }

    #[test]
    fn every_phase_is_reported_with_a_part_from_0_to_1() {
        let mut phases = Vec::new();
        let mut report = |phase, done: f64| {
            assert!((0.0..=1.0).contains(&done));
            if phases.last() != Some(&phase) {
                phases.push(phase);
            }
        };
        run(&mut vec![0; LEN_BYTES], 1, &mut report).unwrap();
        assert_eq!(phases, [Phase::Generate, Phase::Sort, Phase::Group]);
    }

    #[test]
    fn too_little_memory_is_an_error() {
        assert_eq!(run(&mut [], 1, &mut no_progress), Err(JobError::TooSmall));
        assert_eq!(run(&mut [0; 4000], 1, &mut no_progress), Err(JobError::TooSmall));
        assert_eq!(run(&mut [0; 64 * 64 + 24 + 16], 1, &mut no_progress).unwrap().records, 64);
    }

    #[test]
    fn the_most_frequent_of_several_is_the_lowest() {
        assert_eq!(most_frequent(&mut [3, 9, 3, 1, 9]), 3);
        assert_eq!(most_frequent(&mut []), 0);
    }
}
