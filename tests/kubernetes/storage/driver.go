// A storage driver (CSI) for tests on one node. A volume is a file with an XFS, mounted by a loop device.
// A snapshot is a copy of that file, taken while the file system is frozen: like the snapshots of a storage system it
// has one moment of a volume in use. Volumes grow while they are in use; ext4 would require CAP_SYS_RESOURCE for that.
//
//	driver FOLDER KUBELET_FOLDER NODE
//
// FOLDER gets the volumes and the socket csi.sock. It runs in the mount namespace of the kubelet.
package main

import (
	"context"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const name = "storage.kshare.test"

type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	folder, node string
	// One call at a time: nothing here is in a hurry.
	mutex sync.Mutex
	// Where each mounted volume is.
	mounted map[string]string
}

func (d *driver) volume(id string) string   { return filepath.Join(d.folder, "volumes", id) }
func (d *driver) snapshot(id string) string { return filepath.Join(d.folder, "snapshots", id) }

func run(command string, arguments ...string) error {
	output, err := exec.Command(command, arguments...).CombinedOutput()
	log.Printf("%s %s: %v", command, strings.Join(arguments, " "), err)
	if err != nil {
		return status.Errorf(codes.Internal, "%s: %v: %s", command, err, output)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Identity

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: name, VendorVersion: "1"}, nil
}

func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{
			Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}}},
		{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{
			Type: csi.PluginCapability_VolumeExpansion_ONLINE}}},
	}}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// Controller

func (d *driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer := &csi.ControllerGetCapabilitiesResponse{}
	for _, each := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
	} {
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: each}}})
	}
	return answer, nil
}

func (d *driver) CreateVolume(_ context.Context, request *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	path, size := d.volume(request.Name), request.GetCapacityRange().GetRequiredBytes()
	volume := &csi.Volume{VolumeId: request.Name, CapacityBytes: size, ContentSource: request.VolumeContentSource}
	if exists(path) {
		return &csi.CreateVolumeResponse{Volume: volume}, nil
	}
	// Under another name until it is whole: a driver that was killed begins anew.
	made := path + ".new"
	os.Remove(made)
	if source := request.GetVolumeContentSource().GetSnapshot(); source != nil {
		if !exists(d.snapshot(source.SnapshotId)) {
			return nil, status.Error(codes.NotFound, "there is no such snapshot")
		}
		if err := run("cp", "--sparse=always", d.snapshot(source.SnapshotId), made); err != nil {
			return nil, err
		}
		if err := os.Truncate(made, size); err != nil {
			return nil, err
		}
	} else {
		file, err := os.Create(made)
		if err != nil {
			return nil, err
		}
		file.Close()
		if err := os.Truncate(made, size); err != nil {
			return nil, err
		}
		if err := run("mkfs.xfs", "-q", made); err != nil {
			return nil, err
		}
	}
	return &csi.CreateVolumeResponse{Volume: volume}, os.Rename(made, path)
}

func (d *driver) DeleteVolume(_ context.Context, request *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	os.Remove(d.volume(request.VolumeId))
	return &csi.DeleteVolumeResponse{}, nil
}

func (d *driver) ValidateVolumeCapabilities(_ context.Context, request *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	return &csi.ValidateVolumeCapabilitiesResponse{
		Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: request.VolumeCapabilities},
	}, nil
}

func (d *driver) CreateSnapshot(_ context.Context, request *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	path := d.snapshot(request.Name)
	if !exists(path) {
		if err := d.copy(request.SourceVolumeId, path); err != nil {
			return nil, err
		}
	}
	found, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	return &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{
		SnapshotId: request.Name, SourceVolumeId: request.SourceVolumeId, SizeBytes: found.Size(),
		CreationTime: timestamppb.New(found.ModTime()), ReadyToUse: true,
	}}, nil
}

func (d *driver) copy(id, path string) error {
	if target, ok := d.mounted[id]; ok {
		if err := run("fsfreeze", "--freeze", target); err != nil {
			return err
		}
		defer run("fsfreeze", "--unfreeze", target)
	}
	if err := run("cp", "--sparse=always", d.volume(id), path+".new"); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func (d *driver) DeleteSnapshot(_ context.Context, request *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	os.Remove(d.snapshot(request.SnapshotId))
	return &csi.DeleteSnapshotResponse{}, nil
}

func (d *driver) ControllerExpandVolume(_ context.Context, request *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	size := request.GetCapacityRange().GetRequiredBytes()
	if err := os.Truncate(d.volume(request.VolumeId), size); err != nil {
		return nil, err
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: size, NodeExpansionRequired: true}, nil
}

// Node

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.node}, nil
}

func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{
		{Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{
			Type: csi.NodeServiceCapability_RPC_EXPAND_VOLUME}}},
	}}, nil
}

func (d *driver) NodePublishVolume(_ context.Context, request *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	target := request.TargetPath
	if d.mounted[request.VolumeId] == target {
		return &csi.NodePublishVolumeResponse{}, nil
	}
	if err := os.MkdirAll(target, 0o750); err != nil {
		return nil, err
	}
	// A volume and the one of its snapshot have the same id of a file system.
	if err := run("mount", "-t", "xfs", "-o", "loop,nouuid", d.volume(request.VolumeId), target); err != nil {
		return nil, err
	}
	d.mounted[request.VolumeId] = target
	// A volume of a snapshot may be larger than that.
	return &csi.NodePublishVolumeResponse{}, grow(target)
}

func (d *driver) NodeUnpublishVolume(_ context.Context, request *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.mounted[request.VolumeId] == request.TargetPath {
		if err := run("umount", request.TargetPath); err != nil {
			return nil, err
		}
		delete(d.mounted, request.VolumeId)
	}
	return &csi.NodeUnpublishVolumeResponse{}, os.RemoveAll(request.TargetPath)
}

func (d *driver) NodeExpandVolume(_ context.Context, request *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return &csi.NodeExpandVolumeResponse{CapacityBytes: request.GetCapacityRange().GetRequiredBytes()}, grow(request.VolumePath)
}

// The file system at a mount gets all of its file.
func grow(target string) error {
	device, err := exec.Command("findmnt", "--noheadings", "--output", "SOURCE", target).Output()
	if err != nil {
		return err
	}
	loop := strings.TrimSpace(string(device))
	if err := run("losetup", "--set-capacity", loop); err != nil {
		return err
	}
	return run("xfs_growfs", target)
}

// Registration with the kubelet

type registrar struct {
	registration.UnimplementedRegistrationServer
	endpoint string
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: name, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"}}, nil
}

func (r *registrar) NotifyRegistrationStatus(_ context.Context, told *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	log.Printf("registered: %v %s", told.PluginRegistered, told.Error)
	return &registration.RegistrationStatusResponse{}, nil
}

func serve(server *grpc.Server, path string) {
	os.Remove(path)
	listener, err := net.Listen("unix", path)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(server.Serve(listener))
}

func logged(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	began := time.Now()
	answer, err := handler(ctx, request)
	log.Printf("%s: %v after %s", info.FullMethod, err, time.Since(began))
	return answer, err
}

func main() {
	folder, kubelet, node := os.Args[1], os.Args[2], os.Args[3]
	d := &driver{folder: folder, node: node, mounted: map[string]string{}}
	for _, each := range []string{"volumes", "snapshots"} {
		if err := os.MkdirAll(filepath.Join(folder, each), 0o700); err != nil {
			log.Fatal(err)
		}
	}
	socket := filepath.Join(folder, "csi.sock")
	server := grpc.NewServer(grpc.UnaryInterceptor(logged))
	csi.RegisterIdentityServer(server, d)
	csi.RegisterControllerServer(server, d)
	csi.RegisterNodeServer(server, d)
	go serve(server, socket)
	registrations := grpc.NewServer()
	registration.RegisterRegistrationServer(registrations, &registrar{endpoint: socket})
	serve(registrations, filepath.Join(kubelet, "plugins_registry", name+"-reg.sock"))
}
