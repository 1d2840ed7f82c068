//! The Verilator model of the hardware: a shared object that `make rtl` builds, loaded at run time, so that
//! everything else builds and runs where there is no Verilator.
use libloading::Library;
use std::ffi::{c_char, c_void, CString};
use std::mem::size_of;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Words of the widest beat.
pub const DATA_WORDS: usize = 64;

/// Beat of a stream of TLPs.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Beat {
    /// Header; word 3 is the DW 0 of the specification. Valid with `sop`.
    pub hdr: [u32; 4],
    /// Payload, as many bytes as [`Library::data_bytes`](Hardware::data_bytes) at most.
    pub data: [u32; DATA_WORDS],
    /// DWs of `data` that exist.
    pub strb: u64,
    /// 1 while there is a beat.
    pub valid: u8,
    /// 1 on the first beat of a TLP.
    pub sop: u8,
    /// 1 on the last beat of a TLP.
    pub eop: u8,
    /// 1 while the other side takes the beat.
    pub ready: u8,
    pad: [u8; 4],
}

impl Default for Beat {
    fn default() -> Self {
        Self { hdr: [0; 4], data: [0; DATA_WORDS], strb: 0, valid: 0, sop: 0, eop: 0, ready: 0, pad: [0; 4] }
    }
}

impl Beat {
    /// Tells whether the beat changes hands in this cycle.
    pub fn taken(&self) -> bool {
        self.valid != 0 && self.ready != 0
    }
}

/// Pins of card and host in one cycle. `rtl/README.md` says what each pin means.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Pins {
    /// Requests of the card; `ready` is the host's.
    pub req: Beat,
    /// Completions of the host; `ready` is the card's.
    pub cpl: Beat,
    /// Requests of the host; `ready` is the card's.
    pub bar: Beat,
    /// Completions of the card; `ready` is the host's.
    pub bar_cpl: Beat,
    /// Bus, device, function of the card.
    pub requester_id: u16,
    /// 128 << n bytes.
    pub max_payload: u8,
    /// 128 << n bytes.
    pub max_read_req: u8,
    /// 8-bit tags.
    pub ext_tag: u8,
    /// The card may send requests.
    pub bus_master: u8,
    /// MSI-X is on.
    pub msix_enable: u8,
    /// All vectors are masked.
    pub msix_mask: u8,
    /// 0: reset.
    pub rst_n: u8,
    pad: [u8; 7],
}

/// A loaded model; cards are made of it.
#[derive(Clone)]
pub struct Hardware {
    calls: Arc<Calls>,
    data_bytes: usize,
}

struct Calls {
    new: unsafe extern "C" fn(*const c_char) -> *mut c_void,
    cycle: unsafe extern "C" fn(*mut c_void, *mut Pins),
    delete: unsafe extern "C" fn(*mut c_void),
    /// Keeps the functions loaded.
    _library: Library,
}

impl Hardware {
    /// Loads the model of this name: `pd_stack` (which can write waveforms) or another that `make rtl-perf` builds.
    /// Looks in the directory `PD_RTL`, or in a directory `rtl` beside the program or its parents.
    ///
    /// # Errors
    /// A sentence that says what is missing.
    pub fn load(name: &str) -> Result<Self, String> {
        let file = format!("{name}.so");
        let places = places();
        let found = places.iter().map(|dir| dir.join(&file)).find(|path| path.exists());
        let path = found.ok_or_else(|| {
            let looked = places.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(", ");
            format!(
                "no {file} in {looked}; `make rtl` builds it with Verilator, or set PD_RTL to its directory"
            )
        })?;
        Self::open(&path)
    }

    fn open(path: &Path) -> Result<Self, String> {
        let wrong = |error: &dyn std::fmt::Display| format!("cannot load {}: {error}", path.display());
        // SAFETY: the library is built by this project from `sim/pd_rtl.cpp`; loading it runs the initialisers of
        // Verilator's run-time library only, which touch nothing but its own state.
        let library = unsafe { Library::new(path) }.map_err(|e| wrong(&e))?;
        macro_rules! call {
            ($name:literal) => {
                // SAFETY: the type it is stored as is that of the function of this name in `sim/pd_rtl.cpp`.
                *unsafe { library.get($name.as_bytes()) }.map_err(|e| wrong(&e))?
            };
        }
        let pins_bytes: unsafe extern "C" fn() -> u64 = call!("pd_rtl_pins_bytes");
        let data_bytes: unsafe extern "C" fn() -> u32 = call!("pd_rtl_data_bytes");
        // SAFETY: both return a constant.
        let (pins_bytes, data_bytes) = unsafe { (pins_bytes() as usize, data_bytes() as usize) };
        if pins_bytes != size_of::<Pins>() || data_bytes > 4 * DATA_WORDS {
            return Err(wrong(&"it is of another version; run make rtl"));
        }
        let calls = Calls {
            new: call!("pd_rtl_new"),
            cycle: call!("pd_rtl_cycle"),
            delete: call!("pd_rtl_delete"),
            _library: library,
        };
        Ok(Self { calls: Arc::new(calls), data_bytes })
    }

    /// Bytes of a beat.
    pub fn data_bytes(&self) -> usize {
        self.data_bytes
    }

    /// A card in reset, which writes its waveform (FST) to `trace`.
    ///
    /// # Errors
    /// A sentence: the file cannot be written.
    pub fn card(&self, trace: Option<&Path>) -> Result<Model, String> {
        let path = trace.map(|path| CString::new(path.as_os_str().as_bytes())).transpose();
        let path = path.map_err(|_| "a file name with a zero byte".to_owned())?;
        let path_ptr = path.as_ref().map_or(std::ptr::null(), |path| path.as_ptr());
        // SAFETY: a string with its end, or null.
        let card = unsafe { (self.calls.new)(path_ptr) };
        match (card.is_null(), trace) {
            (false, _) => Ok(Model { calls: Arc::clone(&self.calls), card }),
            (true, Some(path)) => Err(format!("cannot write a waveform to {}", path.display())),
            (true, None) => Err("out of memory".to_owned()),
        }
    }
}

fn places() -> Vec<PathBuf> {
    if let Some(dir) = std::env::var_os("PD_RTL") {
        return vec![dir.into()];
    }
    let program = std::env::current_exe().unwrap_or_default();
    program.ancestors().skip(1).take(3).map(|dir| dir.join("rtl")).collect()
}

/// A simulated card. It belongs to the thread that made it.
pub struct Model {
    calls: Arc<Calls>,
    card: *mut c_void,
}

impl Model {
    /// Runs a cycle of the clock: the card sees the inputs of `pins`, and its outputs before the edge are stored there.
    pub fn cycle(&mut self, pins: &mut Pins) {
        // SAFETY: the card lives, is used by this thread alone (a raw pointer keeps `Model` from being sent or
        // shared), and `pins` has the layout that the library was compared with.
        unsafe { (self.calls.cycle)(self.card, pins) }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: made by `new` and not used again.
        unsafe { (self.calls.delete)(self.card) }
    }
}
