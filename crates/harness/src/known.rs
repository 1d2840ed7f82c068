//! Names of containers of other engines, from the engines' files: no engine is asked.
//!
//! The driver knows a container by its control group ([`pd_driver::containers`]). Its name, image and pod are in files that the engine
//! keeps for root. Without a readable file, only the number is known.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use pd_driver::containers::{Container, Engine};
use serde::Serialize;
use serde_json::Value;

/// A larger file is none of an engine's.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Containers that are remembered; then all are forgotten.
const KNOWN_MAX: usize = 65_536;

/// Facts about a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Known {
    /// Name in lists: of a pod `NAMESPACE/POD/CONTAINER`, else `ENGINE:NAME`, or the number.
    pub name: String,
    /// Image of the container.
    pub image: Option<String>,
    /// Pod of the container, `NAMESPACE/POD`; of podman the pod's number.
    pub pod: Option<String>,
}

/// Names that were looked up, and where.
#[derive(Debug)]
pub struct Names {
    root: PathBuf,
    known: HashMap<Container, Known>,
}

impl Default for Names {
    fn default() -> Names {
        Names::below(Path::new("/"))
    }
}

impl Names {
    /// Names in the files below `root`.
    pub fn below(root: &Path) -> Names {
        Names { root: root.to_owned(), known: HashMap::new() }
    }

    /// Facts about a container. Reads files when it is first asked for.
    pub fn of(&mut self, container: &Container) -> Known {
        if let Some(known) = self.known.get(container) {
            return known.clone();
        }
        let known = self.look_up(container);
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(container.clone(), known.clone());
        known
    }

    fn look_up(&self, container: &Container) -> Known {
        let Container { engine, ref id, ref pod, is_users } = *container;
        let found = match engine {
            // A user can give a control group the number of another's container.
            _ if is_users => None,
            Engine::Pd => None,
            Engine::Docker => self.docker(id).or_else(|| self.oci(id)),
            Engine::Podman => self.podman(id),
            Engine::Containerd | Engine::CriO | Engine::Unknown => self.oci(id).or_else(|| self.docker(id)),
        };
        let Found { name, image, pod: named_pod } = found.unwrap_or_default();
        let is_uid = engine != Engine::Podman && !is_users;
        let pod = named_pod.or_else(|| pod.as_ref().filter(|_| is_uid).and_then(|uid| self.pod(uid)));
        let name = match (&pod, name) {
            (Some(pod), Some(name)) => format!("{pod}/{name}"),
            (Some(pod), None) => format!("{pod}/{}", id.get(..12).unwrap_or(id)),
            (None, Some(name)) => format!("{engine}:{name}"),
            (None, None) => container.to_string(),
        };
        Known {
            name: plain(&name),
            image: image.map(|image| plain(&image)),
            pod: pod.or_else(|| container.pod.clone()),
        }
    }

    fn read(&self, path: &str) -> Option<Value> {
        let mut text = Vec::new();
        let file = fs::File::open(self.root.join(path.trim_start_matches('/'))).ok()?;
        file.take(FILE_BYTES_MAX).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Reads docker's own file of a container. Its labels name the pod, if it is in one (cri-dockerd).
    fn docker(&self, id: &str) -> Option<Found> {
        let file = self.read(&format!("/var/lib/docker/containers/{id}/config.v2.json"))?;
        let labels = &file["Config"]["Labels"];
        let pod = pod(word(&labels["io.kubernetes.pod.namespace"]), word(&labels["io.kubernetes.pod.name"]));
        let of_pod = word(&labels["io.kubernetes.container.name"]).filter(|_| pod.is_some());
        let own = word(&file["Name"]).map(|name| name.trim_start_matches('/').to_owned());
        Some(Found { name: of_pod.or(own), image: word(&file["Config"]["Image"]), pod })
    }

    /// Reads the list of containers of podman's storage.
    fn podman(&self, id: &str) -> Option<Found> {
        let list = self.read("/var/lib/containers/storage/overlay-containers/containers.json")?;
        let one = list.as_array()?.iter().find(|one| one["id"] == id)?;
        // Podman's own record is JSON in a string.
        let more: Value =
            one["metadata"].as_str().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let name = word(&more["name"]).or_else(|| word(&one["names"][0]));
        Some(Found { name, image: word(&more["image-name"]), pod: None })
    }

    /// Reads the file of the Open Container Initiative that containerd and CRI-O write for a container, with their annotations.
    fn oci(&self, id: &str) -> Option<Found> {
        let places = [
            format!("/run/containerd/io.containerd.runtime.v2.task/k8s.io/{id}/config.json"),
            format!("/run/containerd/io.containerd.runtime.v2.task/default/{id}/config.json"),
            format!("/run/containerd/io.containerd.runtime.v2.task/moby/{id}/config.json"),
            format!("/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/{id}/config.json"),
            format!("/run/containers/storage/overlay-containers/{id}/userdata/config.json"),
        ];
        let file = places.iter().find_map(|place| self.read(place))?;
        let note = |keys: &[&str]| keys.iter().find_map(|key| word(&file["annotations"][*key]));
        let pod = pod(
            note(&["io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"]),
            note(&["io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"]),
        );
        Some(Found {
            name: note(&["io.kubernetes.cri.container-name", "io.kubernetes.container.name", "nerdctl/name"]),
            image: note(&[
                "io.kubernetes.cri.image-name",
                "io.kubernetes.cri-o.ImageName",
                "nerdctl/image-name",
            ]),
            pod,
        })
    }

    /// Returns namespace and name of the pod of this UID, from the name of kubelet's folder of logs.
    fn pod(&self, uid: &str) -> Option<String> {
        let folders = fs::read_dir(self.root.join("var/log/pods")).ok()?;
        folders.filter_map(Result::ok).find_map(|folder| {
            let name = folder.file_name().into_string().ok()?;
            let rest = name.strip_suffix(uid)?.strip_suffix('_')?;
            let (namespace, pod) = rest.split_once('_')?;
            Some(format!("{namespace}/{pod}"))
        })
    }
}

#[derive(Default)]
struct Found {
    name: Option<String>,
    image: Option<String>,
    pod: Option<String>,
}

fn word(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn pod(namespace: Option<String>, name: Option<String>) -> Option<String> {
    Some(format!("{}/{}", namespace?, name?))
}

/// Replaces control characters in foreign text, which could move a terminal's cursor.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pd_driver::containers::container_of;

    const ID: &str = "4f1a9c0d8e7b6a5f4e3d2c1b0a9f8e7d6c5b4a3f2e1d0c9b8a7f6e5d4c3b2a10";
    const UID: &str = "8dbc76a9-1f2e-4c3b-9a8d-7e6f5a4b3c2d";

    /// Writes a file as an engine does, and returns the known facts of the container of a control group.
    fn known(files: &[(&str, &str)], path: &str) -> Known {
        let root = tempfile::tempdir().unwrap();
        for (at, text) in files {
            let at = root.path().join(at.replace("ID", ID).replace("UID", UID));
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            fs::write(at, text.replace("{ID}", ID)).unwrap();
        }
        let path = path.replace("{ID}", ID).replace("{POD}", UID);
        Names::below(root.path()).of(&container_of(&path).expect("a container"))
    }

    fn said(known: Known) -> (String, Option<String>, Option<String>) {
        (known.name, known.image, known.pod)
    }

    #[test]
    fn names_and_images_come_out_of_the_engines_files() {
        let text = |text: &str| Some(text.to_owned());
        let docker = r#"{"ID":"{ID}","Name":"/web","Config":{"Image":"nginx:1.27","Labels":{}}}"#;
        let docker_at = "var/lib/docker/containers/ID/config.v2.json";
        let told = known(&[(docker_at, docker)], "/system.slice/docker-{ID}.scope");
        assert_eq!(said(told), ("docker:web".to_owned(), text("nginx:1.27"), None));

        let podman = r#"[{"id":"{ID}","names":["{ID}","db"],"metadata":"{\"image-name\":\"docker.io/library/redis:7\",\"name\":\"db\"}"}]"#;
        let podman_at = "var/lib/containers/storage/overlay-containers/containers.json";
        let told = known(&[(podman_at, podman)], "/machine.slice/libpod-{ID}.scope/container");
        assert_eq!(said(told), ("podman:db".to_owned(), text("docker.io/library/redis:7"), None));

        let pod = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{POD}.slice/cri-containerd-{ID}.scope";
        let cri = r#"{"annotations":{"io.kubernetes.cri.container-name":"app","io.kubernetes.cri.image-name":"ghcr.io/x/app:3",
            "io.kubernetes.cri.sandbox-name":"shop-5d9","io.kubernetes.cri.sandbox-namespace":"prod"}}"#;
        let cri_at = "run/containerd/io.containerd.runtime.v2.task/k8s.io/ID/config.json";
        let told = known(&[(cri_at, cri)], pod);
        assert_eq!(
            said(told),
            ("prod/shop-5d9/app".to_owned(), text("ghcr.io/x/app:3"), text("prod/shop-5d9"))
        );

        let crio = r#"{"annotations":{"io.kubernetes.container.name":"app","io.kubernetes.cri-o.ImageName":"quay.io/x:1",
            "io.kubernetes.pod.name":"shop","io.kubernetes.pod.namespace":"prod"}}"#;
        let crio_at = "run/containers/storage/overlay-containers/ID/userdata/config.json";
        let told = known(&[(crio_at, crio)], "/kubepods.slice/kubepods-pod{POD}.slice/crio-{ID}.scope");
        assert_eq!(said(told), ("prod/shop/app".to_owned(), text("quay.io/x:1"), text("prod/shop")));

        let nerdctl = r#"{"annotations":{"nerdctl/name":"cache","nerdctl/image-name":"memcached:1"}}"#;
        let nerdctl_at = "run/containerd/io.containerd.runtime.v2.task/default/ID/config.json";
        let told = known(&[(nerdctl_at, nerdctl)], "/system.slice/nerdctl-{ID}.scope");
        assert_eq!(said(told), ("containerd:cache".to_owned(), text("memcached:1"), None));
    }

    #[test]
    fn a_pod_is_named_by_its_folder_of_logs() {
        let logs = format!("var/log/pods/prod_shop_{UID}/app/0.log");
        let told = known(&[(&logs, "")], "/kubepods/burstable/pod{POD}/{ID}");
        assert_eq!((&*told.name, told.pod.as_deref()), ("prod/shop/4f1a9c0d8e7b", Some("prod/shop")));
    }

    #[test]
    fn without_files_or_with_broken_ones_the_number_is_known() {
        let at = "var/lib/docker/containers/ID/config.v2.json";
        for files in [&[][..], &[(at, "{")], &[(at, "[1]")], &[(at, r#"{"Name":7}"#)]] {
            assert_eq!(known(files, "/docker/{ID}").name, "docker:4f1a9c0d8e7b");
        }
        let told = known(&[(at, "{\"Name\":\"/a\\u001b[2J\"}")], "/docker/{ID}");
        assert_eq!(told.name, "docker:a [2J");
        assert_eq!(known(&[], "/pipedevice/web").name, "web");
        let docker = [(at, r#"{"Name":"/web"}"#)];
        let users = "/user.slice/user-1000.slice/user@1000.service/docker-{ID}.scope";
        assert_eq!(known(&docker, users).name, "docker:4f1a9c0d8e7b", "a user's word");
        let podman = "/machine.slice/machine-libpod_pod_{ID}.slice/libpod-{ID}.scope";
        assert_eq!(known(&[], podman).pod.as_deref(), Some(ID));
    }
}
