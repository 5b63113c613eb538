//! The objects on servers that a configuration names, as a fetcher opens and reads them.
//!
//! A request names an object by its number. The location, the credentials, the cache and the keys in it come from the
//! configuration, and for an image in a registry from its manifest. So the peer, which parses the images, cannot let the
//! fetcher ask for anything else. Bytes are verified by the peer: those of servers are foreign to both.

use super::wire::{Answer, Failure, LayerInfo, LayersInfo, ObjectId, ObjectInfo, Request, bounded};
use crate::mount::cache::OpenedCache;
use crate::mount::media::stores::Stores;
use crate::mount::media::{opening, tree_location};
use crate::mount::shares::CacheShares;
use pagefold_backing::{ByteSource, DeadlineScope, Prefetched};
use pagefold_control::error::{CliError, Result};
use pagefold_control::media::{Location, MediaConfig, REGISTRY_TREE_SUFFIX};
use pagefold_control::report::LatencyReport;
use pagefold_control::report::mount::RemoteReport;
use pagefold_image::verity::{Digest, Salt};
use pagefold_page::latency::Latency;
use pagefold_remote::cache::Key;
use pagefold_remote::oci::LayerBlob;
use pagefold_remote::stores::Store;
use pagefold_remote::whole::NamedObject as _;
use pagefold_remote::{Options, RemoteSource, Secret, Spool, Url};
use pagefold_sys::forkshared::ForkShared;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Threads that fetch ahead of readers of a remote image or device.
const AHEAD_THREADS: usize = 3;

/// The part of shared memory that the bytes of one connection's reads go to.
pub struct Slot {
    /// The memory.
    pub memory: Arc<ForkShared>,
    /// The first byte of the slot.
    pub offset: usize,
    /// Its length.
    pub len_bytes: usize,
}

/// The objects of a configuration.
pub struct Objects {
    config: MediaConfig,
    shares: CacheShares,
    /// The file for objects of servers that answer no range requests.
    spool: Option<Arc<Spool>>,
    opener: Mutex<Opener>,
    open: RwLock<BTreeMap<ObjectId, Arc<RemoteSource>>>,
}

/// The part that opens objects, one at a time.
struct Opener {
    stores: Stores,
    cache: Option<OpenedCache>,
    /// The digests and salts of media in registries whose manifests name some.
    of_registry: BTreeMap<usize, (Digest, Salt)>,
    /// The media that were forgotten: the cache is wrong once at most.
    forgotten: BTreeSet<usize>,
}

impl Objects {
    /// Opens the cache, with the rights of the calling thread. `report` gets a sentence when it begins to fail.
    pub fn new(
        config: MediaConfig,
        shares: CacheShares,
        spool: Option<Spool>,
        report: fn(&str),
    ) -> Result<Self> {
        let stores = Stores::new(&config.remote)?;
        let cache = config.remote.cache.as_ref().map(|cache| OpenedCache::open(cache, report));
        let opener = Opener { stores, cache, of_registry: BTreeMap::new(), forgotten: BTreeSet::new() };
        let spool = spool.map(Arc::new);
        Ok(Objects { config, shares, spool, opener: Mutex::new(opener), open: RwLock::default() })
    }

    /// Carries out a request of a peer that may be hostile.
    pub fn carry_out(&self, request: Request, slot: Option<&Slot>) -> Result<Answer, Failure> {
        match request {
            Request::Hello => {
                let opener = self.opener();
                let warning = opener.cache.as_ref().and_then(OpenedCache::warning);
                Ok(Answer::Hello { without_cache: warning.map(|warning| bounded(warning.into())) })
            }
            Request::Verity { medium } => Ok(self.verity_of(medium)?),
            Request::Layers { medium } => Ok(self.layers_of(medium)?),
            Request::Open(id) if id.layer.is_some() => Ok(Answer::Opened(self.open_layer(id)?)),
            Request::Open(id) => Ok(Answer::Opened(self.open(id)?)),
            Request::Close(id) => {
                self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
                Ok(Answer::Done)
            }
            Request::Forget { medium } => Ok(self.forget(medium)?),
            Request::Remember(id) => {
                self.get(id)?.remember();
                Ok(Answer::Done)
            }
            Request::HasOtherBytes(id) => Ok(Answer::Flag(self.get(id)?.has_other_bytes()?)),
            Request::Read { object, offset, len_bytes, wanted_end, age_ns } => {
                let slot = slot.filter(|slot| len_bytes <= slot.len_bytes as u64).ok_or_else(refused)?;
                self.read(object, offset, len_bytes, wanted_end, age_ns, slot)
            }
            Request::Discard { object, offset, len_bytes } => {
                let source = self.get(object)?;
                source.check_range(offset, len_bytes)?;
                Ok(Answer::Flag(source.discard_cached(offset, len_bytes)))
            }
            Request::Prefetch { object, offset, len_bytes } => {
                match self.get(object)?.prefetch(offset, len_bytes) {
                    Prefetched::Done => Ok(Answer::Done),
                    Prefetched::NoRoom => Ok(Answer::NoRoom),
                    Prefetched::Failed => Err(Failure::Unreachable("a range was not fetched".into())),
                }
            }
            Request::Report => Ok(Answer::Report(Box::new(self.report()))),
        }
    }

    fn opener(&self) -> std::sync::MutexGuard<'_, Opener> {
        self.opener.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, id: ObjectId) -> Result<Arc<RemoteSource>> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.get(&id).cloned().ok_or_else(refused)
    }

    fn location(&self, medium: usize) -> Result<&Location> {
        self.config.all().nth(medium).ok_or_else(refused)
    }

    fn verity_of(&self, medium: usize) -> Result<Answer> {
        let location = self.location(medium)?;
        let (opener, mut notes) = (&mut *self.opener(), Vec::new());
        let found = match self.config.verity {
            Some(_) => None,
            None => opener.stores.verity_of(location, &mut notes)?,
        };
        let texts = found.as_ref().map(|(digest, salt)| (digest.to_string(), salt.to_string()));
        opener.of_registry.extend(found.map(|found| (medium, found)));
        Ok(Answer::Verity { found: texts, notes: notes.into_iter().map(bounded).collect() })
    }

    /// The digest and salt of a medium that is verified.
    fn digest_of(&self, opener: &Opener, medium: usize) -> Option<(String, String)> {
        match &self.config.verity {
            Some(verity) => verity.digests.get(medium).map(|digest| (digest.clone(), verity.salt.clone())),
            None => {
                opener.of_registry.get(&medium).map(|(digest, salt)| (digest.to_string(), salt.to_string()))
            }
        }
    }

    /// The keys in the cache of the contents of a medium that is verified, and of its tree.
    fn keys(&self, opener: &Opener, medium: usize) -> Option<[Key; 2]> {
        let (digest, salt) = self.digest_of(opener, medium)?;
        // As texts that were parsed: equal ones have one key.
        let (digest, salt) = (digest.parse::<Digest>().ok()?, salt.parse::<Salt>().ok()?);
        Some(["data", "tree"].map(|role| Key::of_digest(role, &digest.to_string(), &salt.to_string())))
    }

    fn open(&self, id: ObjectId) -> Result<ObjectInfo> {
        let ObjectId { medium, is_tree, .. } = id;
        let image = self.location(medium)?;
        let opener = &mut *self.opener();
        if self.get(id).is_ok() {
            return Err(refused());
        }
        let keys = self.keys(opener, medium);
        let location = match (is_tree, &self.config.verity) {
            (false, _) => image.clone(),
            (true, Some(verity)) => tree_location(verity, medium, image),
            (true, None) if keys.is_some() => image.with_suffix(REGISTRY_TREE_SUFFIX),
            (true, None) => return Err(refused()),
        };
        let Location::Url(url) = &location else { return Err(refused()) };
        let content = keys.map(|[data, tree]| if is_tree { tree } else { data });
        let (cache_bytes, ahead_threads) = match is_tree {
            true => (self.shares.tree_bytes, 0),
            false => (self.shares.image_bytes, if self.config.remote.read_ahead { AHEAD_THREADS } else { 0 }),
        };
        let options = Options {
            timeout: Duration::from_millis(self.config.remote.timeout_ms),
            cache_bytes,
            ahead_threads,
            authorization: None,
            is_verified: content.is_some(),
            cache: opener.cache.as_ref().and_then(|cache| cache.for_source(content)),
            spool: self.spool.clone(),
        };
        let source = self.open_url(opener, &location, url, options)?;
        Ok(self.opened(id, source))
    }

    /// Keeps an object that is open, and describes it.
    fn opened(&self, id: ObjectId, source: RemoteSource) -> ObjectInfo {
        let info = ObjectInfo {
            len_bytes: source.len_bytes(),
            version_name: source.version_name().map(bounded),
            content_digest: source.content_digest().map(String::from),
            is_from_cache: source.is_from_cache(),
            is_kept: source.is_kept(),
            description: bounded(source.describe()),
        };
        self.open.write().unwrap_or_else(PoisonError::into_inner).insert(id, Arc::new(source));
        info
    }

    /// The name of a medium in a registry.
    fn registry_name(&self, medium: usize) -> Result<(&Location, &str)> {
        match self.location(medium)? {
            location @ Location::Url(name) if Store::of(name) == Some(Store::Oci) => Ok((location, name)),
            _ => Err(refused()),
        }
    }

    fn layers_of(&self, medium: usize) -> Result<Answer> {
        let (location, name) = self.registry_name(medium)?;
        let image = self.opener().stores.layers_of(location, name)?;
        let info = |layer: &LayerBlob| LayerInfo {
            digest: layer.blob.digest.clone(),
            len_bytes: layer.blob.len_bytes,
            is_image: layer.is_image,
            diff_id: layer.diff_id.clone(),
        };
        let layers = image.layers().iter().map(info).collect();
        Ok(Answer::Layers(LayersInfo { layers, manifest_digest: image.manifest_digest().to_string() }))
    }

    /// Opens a layer, which is read once and in order: the cache on disk would only have it beside the file that it is
    /// copied to.
    fn open_layer(&self, id: ObjectId) -> Result<ObjectInfo> {
        let (location, name) = self.registry_name(id.medium)?;
        let number = id.layer.filter(|_| !id.is_tree && self.get(id).is_err()).ok_or_else(refused)?;
        let options = Options {
            timeout: Duration::from_millis(self.config.remote.timeout_ms),
            cache_bytes: self.shares.image_bytes,
            ahead_threads: if self.config.remote.read_ahead { AHEAD_THREADS } else { 0 },
            authorization: None,
            is_verified: false,
            cache: None,
            spool: self.spool.clone(),
        };
        let image = self.opener().stores.layers_of(location, name)?;
        let source = image.open(number, &options).ok_or_else(refused)?.map_err(|e| opening(location, &e))?;
        Ok(self.opened(id, source))
    }

    fn open_url(
        &self,
        opener: &mut Opener,
        location: &Location,
        name: &str,
        options: Options,
    ) -> Result<RemoteSource> {
        let opened = match Store::of(name) {
            Some(Store::Oci) => opener.stores.open_oci(location, name, &options)?,
            Some(_) => opener.stores.open_object(location, name, &options)?,
            None => {
                let url = Url::parse(name).map_err(|e| CliError::usage(format!("'{location}': {e}")))?;
                let is_of_image = self.image_origin().as_ref() == Some(&url.origin());
                let authorization = self.config.remote.authorization.as_ref().filter(|_| is_of_image);
                let authorization = authorization.map(|secret| Secret(secret.0.clone()));
                RemoteSource::open(&url, Options { authorization, ..options })
            }
        };
        opened.map_err(|e| opening(location, &e))
    }

    /// The server of the image, which gets the credentials.
    fn image_origin(&self) -> Option<String> {
        match &self.config.image {
            Location::Url(url) => Url::parse(url).ok().map(|url| url.origin()),
            Location::File(_) => None,
        }
    }

    fn forget(&self, medium: usize) -> Result<Answer> {
        let opener = &mut *self.opener();
        let keys = self.keys(opener, medium).filter(|_| opener.forgotten.insert(medium));
        let keys = keys.ok_or_else(refused)?;
        opener.cache.iter().for_each(|cache| keys.iter().for_each(|key| cache.remove(key)));
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        open.retain(|id, _| id.medium != medium);
        Ok(Answer::Done)
    }

    fn read(
        &self,
        object: ObjectId,
        offset: u64,
        len_bytes: u64,
        wanted_end: u64,
        age_ns: Option<u64>,
        slot: &Slot,
    ) -> Result<Answer, Failure> {
        let source = self.get(object)?;
        let now = Instant::now();
        let begun = age_ns.map(|age| now.checked_sub(Duration::from_nanos(age)).unwrap_or(now));
        let _scope = DeadlineScope::begin_for(begun);
        let (mut at, mut is_written) = (slot.offset, true);
        let mut put = |bytes: &[u8]| {
            is_written &= slot.memory.write(at, bytes);
            at += bytes.len();
        };
        source.read_parts(offset..offset.saturating_add(len_bytes), wanted_end, &mut put)?;
        if is_written { Ok(Answer::Done) } else { Err(refused().into()) }
    }

    /// The sums of the counters of all objects.
    fn report(&self) -> RemoteReport {
        let cache = self.opener().cache.as_ref().map(OpenedCache::report);
        let mut report = RemoteReport { cache, ..RemoteReport::default() };
        let mut latency = Latency::default();
        for source in self.open.read().unwrap_or_else(PoisonError::into_inner).values() {
            let stats = source.stats();
            report.requests += stats.requests;
            report.retries += stats.retries;
            report.received_bytes += stats.received_bytes;
            report.hit_bytes += stats.hit_bytes;
            report.failed_reads += stats.failed_reads;
            report.cache_bytes += stats.cache_bytes;
            report.request_ns += stats.request_ns;
            latency.max_ns = latency.max_ns.max(stats.latency.max_ns);
            latency.buckets.iter_mut().zip(stats.latency.buckets).for_each(|(sum, n)| *sum += n);
            report.last_error = source.last_error().map(bounded).or(report.last_error);
        }
        report.latency = LatencyReport::new(&latency);
        report
    }
}

/// The answer to a request that only a hostile peer makes.
fn refused() -> CliError {
    CliError::failed("a fetcher was asked for an object or a range that does not exist")
}
