//! Things that a policy can name: those that the conductor reports and those that are looked up, in the terms of the kernel's programs.
use super::known::{Change, Holder, Known};
use super::spaces::{self, Spaces};
use crate::identity::NamespaceId;
use crate::ids::TenantId;
use crate::policy::Maps;
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Deepest level of control groups that programs tell apart.
const LEVELS_MAX: u32 = 8;

/// A network namespace as the conductor knows it: of clients, or of a container.
#[derive(Clone, Debug)]
pub struct Space {
    pub file: Arc<OwnedFd>,
    pub tenant: TenantId,
    /// The number of its network.
    pub network: u32,
    /// The container that `pd run` registered there, and its addresses.
    pub container: Option<String>,
    pub addresses: Vec<IpAddr>,
}

/// Everything that the conductor knows and a policy can name.
#[derive(Clone, Debug, Default)]
pub struct World {
    pub spaces: HashMap<NamespaceId, Space>,
    /// Namespaces that the policy names.
    pub files: Vec<(PathBuf, TenantId)>,
    /// Control groups, by path.
    pub groups: BTreeMap<String, TenantId>,
    /// Namespaces that networks of the policy name, and the networks of tenants.
    pub network_files: Vec<(PathBuf, u32)>,
    pub tenant_networks: HashMap<TenantId, u32>,
    /// Addresses of one network that mean those of another one.
    pub maps: Arc<Maps<u32>>,
}

/// Changes of a [`World`].
#[derive(Clone, Debug, Default)]
pub struct Changes {
    pub spaces: Vec<(NamespaceId, Option<Space>)>,
    pub groups: Vec<(String, Option<TenantId>)>,
}

/// A namespace's file, tenant and network, and its container with the addresses that `pd run` registered.
type Whose = (Arc<OwnedFd>, (TenantId, u32), (Option<String>, Vec<IpAddr>));

type Found = HashMap<NamespaceId, (Arc<OwnedFd>, TenantId)>;

/// See the module.
#[derive(Debug)]
pub struct Scene {
    world: World,
    /// Namespaces that the policy names, and those of processes in control groups, as of the last look.
    files: Found,
    below: Found,
    /// Networks of namespaces that networks name.
    networks: HashMap<NamespaceId, u32>,
    /// Numbers of namespaces that are known.
    numbers: HashMap<NamespaceId, u32>,
    /// Namespaces that are still to be entered.
    unentered: BTreeSet<NamespaceId>,
    known: Known,
}

impl Scene {
    /// Begins with a world; nothing is looked at yet.
    pub fn new(world: World) -> Self {
        let unentered = world.spaces.keys().copied().collect();
        let (files, below, networks, numbers, known) = Default::default();
        Self { world, files, below, networks, numbers, unentered, known }
    }

    /// Addresses of one network that mean those of another one.
    pub fn maps(&self) -> &Arc<Maps<u32>> {
        &self.world.maps
    }

    /// Returns the world in the terms of the kernel's programs.
    pub fn known(&self) -> &Known {
        &self.known
    }

    /// Tells whether a namespace belongs to the scene.
    pub fn has(&self, id: NamespaceId) -> bool {
        self.world.spaces.contains_key(&id) || self.files.contains_key(&id) || self.below.contains_key(&id)
    }

    /// Looks for unreported changes: files of namespaces, control groups and their processes.
    pub fn look(&mut self, root: &Path, spaces: &mut Spaces) -> Vec<Change> {
        let (mut files, mut below, mut changes) = (Found::new(), Found::new(), Vec::new());
        for (path, tenant) in &self.world.files {
            if let Ok((id, file)) = spaces::open_file(path) {
                files.entry(id).or_insert((file, *tenant));
            }
        }
        let mut networks = HashMap::new();
        for (path, network) in &self.world.network_files {
            if let Ok((id, file)) = spaces::open_file(path) {
                networks.entry(id).or_insert(*network);
                files.entry(id).or_insert((file, TenantId::default()));
            }
        }
        for (path, tenant) in &self.world.groups {
            for (id, file) in spaces::below(root, path) {
                below.entry(id).or_insert((file, *tenant));
            }
            changes.extend(self.known.set_group(path, group(root, path, *tenant)));
        }
        let mut changed = std::mem::take(&mut self.unentered);
        changed.extend(
            networks
                .keys()
                .chain(self.networks.keys())
                .filter(|id| networks.get(id) != self.networks.get(id)),
        );
        self.networks = networks;
        for (old, new) in [(&mut self.files, files), (&mut self.below, below)] {
            let tenant = |found: &Found, id| found.get(&id).map(|(_, tenant)| *tenant);
            let ids: BTreeSet<_> = old.keys().chain(new.keys()).copied().collect();
            changed.extend(ids.into_iter().filter(|id| tenant(old, *id) != tenant(&new, *id)));
            // A file that is open already stays.
            old.retain(|id, _| new.contains_key(id));
            for (id, (file, tenant)) in new {
                old.entry(id).and_modify(|known| known.1 = tenant).or_insert((file, tenant));
            }
        }
        changes.extend(changed.into_iter().flat_map(|id| self.refresh(id, spaces)));
        changes
    }

    /// Applies changes that the conductor reports.
    pub fn tell(&mut self, told: &Changes, root: &Path, spaces: &mut Spaces) -> Vec<Change> {
        let mut changes = Vec::new();
        for (id, space) in &told.spaces {
            match space {
                Some(space) => drop(self.world.spaces.insert(*id, space.clone())),
                None => drop(self.world.spaces.remove(id)),
            }
            changes.extend(self.refresh(*id, spaces));
        }
        for (path, tenant) in &told.groups {
            match tenant {
                Some(tenant) => drop(self.world.groups.insert(path.clone(), *tenant)),
                None => drop(self.world.groups.remove(path)),
            }
            let group = tenant.and_then(|tenant| group(root, path, tenant));
            changes.extend(self.known.set_group(path, group));
        }
        changes
    }

    /// Applies changes of one namespace: another tenant, other addresses, or its end.
    pub fn refresh(&mut self, id: NamespaceId, spaces: &mut Spaces) -> Vec<Change> {
        let holder = self.space(id).and_then(|(file, (tenant, network), (container, registered))| {
            let seen = spaces.enter(id, &file);
            let seen = seen.inspect_err(|error| {
                self.unentered.insert(id);
                tracing::warn!(%error, "a network namespace cannot be entered: the policy does not bind it on the kernel");
            });
            let seen = seen.ok()?;
            let (cookie, before, held) = (seen.cookie, seen.before, seen.addresses.clone());
            Some((seen.number, Holder { cookie, before, tenant, network, container, registered, held }))
        });
        let mut changes = Vec::new();
        let number = holder.as_ref().map(|(number, _)| *number);
        if let Some(old) = self.numbers.get(&id).copied().filter(|old| Some(*old) != number) {
            changes.extend(self.known.set_space(old, None));
            self.numbers.remove(&id);
        }
        if let Some((number, holder)) = holder {
            changes.extend(self.known.set_space(number, Some(holder)));
            self.numbers.insert(id, number);
        }
        changes
    }

    /// Returns file, tenant, and registered container and addresses of a namespace. The conductor's report goes before that of a file,
    /// and both before the processes there.
    fn space(&self, id: NamespaceId) -> Option<Whose> {
        let file = self.files.get(&id);
        if let Some(Space { file: open, tenant, network, container, addresses }) = self.world.spaces.get(&id)
        {
            let named = file.map(|(_, tenant)| *tenant).filter(|_| *tenant == TenantId::default());
            let registered = (container.clone(), addresses.clone());
            return Some((Arc::clone(open), (named.unwrap_or(*tenant), *network), registered));
        }
        let (file, tenant) = file.or_else(|| self.below.get(&id))?;
        let network = self.networks.get(&id).or_else(|| self.world.tenant_networks.get(tenant));
        Some((Arc::clone(file), (*tenant, network.copied().unwrap_or(0)), (None, Vec::new())))
    }
}

/// Returns number, depth and tenant of a control group that exists.
fn group(root: &Path, path: &str, tenant: TenantId) -> Option<(u64, u32, TenantId)> {
    let depth = path.split('/').filter(|part| !part.is_empty()).count() as u32;
    let number = spaces::group(root, path).filter(|_| depth <= LEVELS_MAX)?;
    Some((number, depth, tenant))
}
