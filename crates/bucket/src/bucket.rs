//! [`Bucket`]: small objects with their versions, conditional writes, lists and deletion.

use crate::connect::{Connected, connect};
use crate::error::{BucketError, is_beyond_end};
use crate::upload::{self, Uploaded, Verdict};
use object_store::list::PaginatedListOptions;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion};
use pagefold_remote::logins;
use pagefold_remote::stores::{ObjectName, StoreSettings};
use std::io::Read;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// Most objects of a list: beyond that it is an error.
const LISTED_MAX: usize = 100_000;

/// A bucket, with the login that the environment has for it.
pub struct Bucket {
    connected: Connected,
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
}

/// A version of an object, by which a write can tell that nobody else has written.
#[derive(Debug, Clone)]
pub struct Version(UpdateVersion);

/// A small object.
#[derive(Debug, Clone)]
pub struct SmallObject {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its version.
    pub version: Version,
}

/// When a write is done.
#[derive(Debug, Clone)]
pub enum Condition {
    /// If there is no such object.
    Absent,
    /// If the object has this version.
    Is(Version),
}

/// An object of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its key.
    pub key: String,
    /// Its length.
    pub len_bytes: u64,
    /// When it was written last, seconds since 1970.
    pub modified_unix_s: i64,
}

/// The time limit of [`Target::open`]: a part of 8 MiB passes a link of half a megabit in it.
const TIMEOUT: Duration = Duration::from_secs(180);

/// An object that is to be written.
pub struct Target {
    /// Its bucket.
    pub bucket: Bucket,
    /// Its key.
    pub key: String,
}

impl Target {
    /// The target with this name, `s3://bucket/key`, `gs://bucket/object` or `az://container/blob`, with the login that the
    /// environment of this process has for it. May run the program that a profile names for logins.
    pub fn open(name: &str) -> Result<Self, BucketError> {
        let set_up = |what: String| BucketError::SetUp { what };
        let name = ObjectName::parse(name).map_err(|e| set_up(e.to_string()))?;
        let settings = logins::settings(&name).map_err(|e| set_up(e.to_string()))?;
        path(name.key())?;
        Ok(Target { bucket: Bucket::open(&name, &settings, TIMEOUT)?, key: name.key().to_string() })
    }
}

impl Bucket {
    /// The bucket that this object is in. Sends nothing. A request with its repetitions takes `timeout`, and the last one as
    /// long again.
    pub fn open(name: &ObjectName, settings: &StoreSettings, timeout: Duration) -> Result<Self, BucketError> {
        let runtime = Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(|e| BucketError::SetUp { what: format!("starting a runtime: {e}") })?;
        Ok(Bucket { connected: connect(name, settings, timeout)?, runtime: Some(runtime) })
    }

    fn block_on<T>(&self, work: impl Future<Output = Result<T, BucketError>>) -> Result<T, BucketError> {
        let ended = || BucketError::SetUp { what: "the runtime has ended".into() };
        self.runtime.as_ref().ok_or_else(ended)?.block_on(work)
    }

    /// Reads an object; `None` if there is none. Fails with [`BucketError::TooLong`] beyond `max_bytes`, of which the rest is not
    /// sent. A bucket that does not exist is an error.
    pub fn get(&self, key: &str, max_bytes: u64) -> Result<Option<SmallObject>, BucketError> {
        let path = path(key)?;
        self.block_on(async {
            let store = &self.connected.store;
            let bounded = GetOptions::default().with_range(Some(0..max_bytes.saturating_add(1)));
            let found = match store.get_opts(&path, bounded).await {
                // An empty object has no range.
                Err(e) if is_beyond_end(&e) => store.get(&path).await,
                found => found,
            };
            let found = match found.map_err(BucketError::from) {
                Err(BucketError::Missing { what }) if !what.contains("no such bucket") => return Ok(None),
                found => found?,
            };
            if found.meta.size > max_bytes {
                return Err(BucketError::TooLong { max_bytes });
            }
            let (e_tag, version) = (found.meta.e_tag.clone(), found.meta.version.clone());
            let version = Version(UpdateVersion { e_tag, version });
            Ok(Some(SmallObject { bytes: found.bytes().await?.to_vec(), version }))
        })
    }

    /// Writes a small object if the condition holds; otherwise fails with [`BucketError::Changed`]. Sends one request. After
    /// [`BucketError::Failed`] the object may be written, or may be written later: read it. So a caller that repeats the write
    /// knows whether an earlier one may still be done.
    pub fn put_if(&self, key: &str, bytes: &[u8], condition: &Condition) -> Result<(), BucketError> {
        let mode = match condition {
            Condition::Absent => PutMode::Create,
            Condition::Is(Version(version)) => PutMode::Update(version.clone()),
        };
        let (path, payload) = (path(key)?, PutPayload::from(bytes.to_vec()));
        let options = PutOptions { mode, ..PutOptions::default() };
        self.block_on(async {
            self.connected.once.put_opts(&path, payload, options).await?;
            Ok(())
        })
    }

    /// Uploads a stream as the object `key`, which nobody else writes. When the stream has ended it waits for the `verdict`;
    /// without one, as after an error, there is no object, and what was sent is removed as far as the store answers. Takes
    /// memory for five parts: 40 MiB for streams up to 16 GiB.
    pub fn put_stream(
        &self,
        key: &str,
        input: impl Read + Send + 'static,
        verdict: Verdict,
    ) -> Result<Uploaded, BucketError> {
        let path = path(key)?;
        self.block_on(upload::put_stream(self.connected.store.clone(), path, Box::new(input), verdict))
    }

    /// The objects whose keys begin with `prefix`, at most 100 000.
    pub fn list(&self, prefix: &str) -> Result<Vec<Listed>, BucketError> {
        path(prefix)?;
        self.block_on(async {
            let mut found = Vec::new();
            let mut options = PaginatedListOptions::default();
            loop {
                let page = self.connected.lister.list_paginated(Some(prefix), options).await?;
                found.extend(page.result.objects.into_iter().map(|object| Listed {
                    key: object.location.to_string(),
                    len_bytes: object.size,
                    modified_unix_s: object.last_modified.timestamp(),
                }));
                if found.len() > LISTED_MAX {
                    let what = format!("there are more than {LISTED_MAX} objects that begin with '{prefix}'");
                    return Err(BucketError::Failed { what });
                }
                let Some(token) = page.page_token else { return Ok(found) };
                options = PaginatedListOptions { page_token: Some(token), ..Default::default() };
            }
        })
    }

    /// Deletes an object. A missing one is no error.
    pub fn delete(&self, key: &str) -> Result<(), BucketError> {
        let path = path(key)?;
        match self.block_on(async { Ok(self.connected.store.delete(&path).await?) }) {
            Err(BucketError::Missing { .. }) => Ok(()),
            result => result,
        }
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        // Without waiting for a thread that reads from a stream, or sends a request that was given up.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The key as the library takes it.
fn path(key: &str) -> Result<Path, BucketError> {
    let unusable =
        |why: String| BucketError::SetUp { what: format!("the key '{key}' cannot be written: {why}") };
    let path = Path::parse(key).map_err(|e| unusable(e.to_string()))?;
    // The library drops a slash at either end.
    match path.as_ref() == key {
        true => Ok(path),
        false => Err(unusable("it begins or ends with '/'".to_string())),
    }
}
